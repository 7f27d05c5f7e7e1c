"""Values and gradients of losses against PyTorch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import losses

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def discriminator_loss(real, fake):
    bce = functional.binary_cross_entropy_with_logits
    return bce(real, torch.ones_like(real)) + bce(fake, torch.zeros_like(fake))


def generator_loss(fake):
    return functional.binary_cross_entropy_with_logits(fake, torch.ones_like(fake))


def code_of_dcn(x, reconstructions, z, centroids, lbd=0.05):
    """Over lbd, as it weighs the reconstruction and we the clusters."""
    loss = ((z - centroids.detach()) ** 2).sum(dim=1).mean()
    return loss / lbd + ((x - reconstructions) ** 2).sum(dim=1).mean()


def dec(z, centroids):
    q = losses.student_t(z, centroids)
    return losses.assignment_kl(losses.target_distribution(q), q)


def dec_in_torch(z, centroids):
    q = 1 / (1 + torch.cdist(z, centroids) ** 2)
    q = q / q.sum(dim=1, keepdim=True)
    p = q.detach() ** 2 / q.detach().sum(dim=0)
    p = p / p.sum(dim=1, keepdim=True)
    return functional.kl_div(q.log(), p, reduction="batchmean")


def nt_xent(z_a, z_b):
    """Cross-entropy over all similarities without the diagonal."""
    z = functional.normalize(torch.cat([z_a, z_b]))
    count = len(z)
    scores = z @ z.T / 0.5
    scores = scores[~torch.eye(count, dtype=torch.bool)].reshape(count, count - 1)
    positive = torch.arange(count).roll(count // 2)
    # Behind the diagonal every column has moved one to the left.
    positive -= (positive > torch.arange(count)).long()
    return functional.cross_entropy(scores, positive)


def cleared(c):
    return c * (1 - torch.eye(len(c)))


LOSSES = {
    "discriminator": (losses.discriminator_loss, discriminator_loss, [(7,), (7,)]),
    "generator": (losses.generator_loss, generator_loss, [(7,)]),
    "DCN": (
        partial(losses.deep_kmeans, cluster_weight=2 / 0.05),
        code_of_dcn,
        [(7, 5), (7, 5), (7, 3), (7, 3)],
    ),
    "DEC": (dec, dec_in_torch, [(9, 4), (3, 4)]),
    "nt_xent": (partial(losses.nt_xent, temperature=0.5), nt_xent, [(7, 4), (7, 4)]),
    "cluster_nt_xent": (
        lambda a, b: losses.cluster_nt_xent(
            jax.nn.softmax(a), jax.nn.softmax(b), temperature=0.5
        ),
        lambda a, b: nt_xent(a.softmax(dim=1).T, b.softmax(dim=1).T),
        [(7, 4), (7, 4)],
    ),
    "self-expression": (
        losses.self_expression,
        lambda z, c: ((z - cleared(c) @ z) ** 2).sum(),
        [(6, 4), (6, 6)],
    ),
    "alignment": (
        partial(losses.locality_alignment, alpha=0.5, beta=2.0),
        lambda c, a: ((0.5 * cleared(a) - 2 * cleared(c)) ** 2).sum(),
        [(6, 6), (6, 6)],
    ),
    **{
        norm: (partial(losses.coefficient_penalty, norm=norm), by_torch, [(6, 6)])
        for norm, by_torch in (
            ("frobenius", lambda c: (cleared(c) ** 2).sum()),
            ("l1", lambda c: cleared(c).abs().sum()),
            ("nuclear", lambda c: torch.linalg.matrix_norm(cleared(c), ord="nuc")),
        )
    },
}


@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_are_those_of_torch(name):
    loss, by_torch, shapes = LOSSES[name]
    rng = np.random.default_rng(0)
    arrays = [2 * rng.normal(size=shape) for shape in shapes]
    given = [torch.tensor(array, requires_grad=True) for array in arrays]
    expected = by_torch(*given)
    expected.backward()
    value, gradients = jax.jit(jax.value_and_grad(loss, range(len(shapes))))(
        *map(jnp.asarray, arrays)
    )
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    for gradient, tensor in zip(gradients, given, strict=True):
        reference = 0 if tensor.grad is None else tensor.grad.numpy()
        np.testing.assert_allclose(gradient, reference, rtol=1e-5, atol=1e-7)
