"""SimCLR on the clients, averaged by the server: a baseline of FedCA and FedMCC.

SimCLR: A Simple Framework for Contrastive Learning of Visual Representations
    Ting Chen, Simon Kornblith, Mohammad Norouzi, Geoffrey Hinton. ICML 2020.
    https://arxiv.org/abs/2002.05709
"""

from fcjax.algorithms.averaging import Local
from fcjax.algorithms.cc import simclr_contrast
from fcjax.algorithms.two_stage import Clustering, two_stages
from fcjax.types import FederatedClustering, Network, Scalar


def fedsimclr(
    encoder: Network,
    projector: Network,
    clustering: Clustering,
    local: Local,
    *,
    num_rounds: int = 100,
    instance_temperature: Scalar = 0.5,
) -> FederatedClustering:
    """Builds FedSimCLR: two views of an example against those of the others.

    FedMCC's first stage without its target network.

    Args:
        encoder, projector: from examples to features, to representations z.
        clustering: the second stage.
        local: how a client trains in a round.
        num_rounds: of the first stage.
        instance_temperature: tau of `losses.nt_xent`.

    Returns:
        The method, as `two_stages`.

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> from fcjax.algorithms.two_stage import feature_kmeans
        >>> from fcjax.data.vectors import vector_view
        >>> encoder, z = models.encoder(models.MLP((16,))), models.projector(8)
        >>> local = Local(optax.adam(1e-3), vector_view)
        >>> clustering = feature_kmeans(num_clusters=3)
        >>> method = fedsimclr(encoder, z, clustering, local)
        >>> [stage.name for stage in method.stages]
        ['representation', 'k-means']
    """
    networks = local.networks(encoder=encoder, projector=projector)
    contrast = simclr_contrast(networks, temperature=instance_temperature)
    return two_stages(networks, contrast, clustering, local, num_rounds=num_rounds)
