import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def full_precision():
    with jax.default_matmul_precision("highest"):
        yield
