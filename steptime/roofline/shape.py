"""The shape of a language model: as much as FLOP formulas and parameter counts need.

Weights are counted per layer and by use, because conventions differ in what they count: matrix weights that every token
meets, experts that it does not, routers, norms and biases, tables that are looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """One transformer layer; every field is a number of parameters, except `window`.

    `attention` and `mlp` are matrix weights that each token is multiplied with (of routed experts only the top k),
    `mlp_idle` those of the other experts. `vectors` are norms and biases in use, `vectors_idle` the other experts'.
    `window` is the number of tokens that attention reaches back, None without a limit.
    """

    attention: int
    mlp: int
    mlp_idle: int = 0
    router: int = 0
    vectors: int = 0
    vectors_idle: int = 0
    #: Norms inside a low-rank attention projection (MLA). Part of `vectors`; Megatron counts them as FLOPs.
    low_rank_norms: int = 0
    window: int | None = None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only language model. Without `layers` only `counted` is known (a bare parameter count)."""

    name: str
    #: Where the shape was read: a file, or a preset's source.
    source: str
    layers: tuple[Layer, ...] = ()
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    #: Width of a query or key head, and of a value head; they differ with MLA.
    qk_head_dim: int = 0
    v_head_dim: int = 0
    vocab: int = 0
    #: The output head shares the input embedding's weights.
    tied: bool = False
    #: Rows of a learned position table times hidden size.
    positions: int = 0
    #: Norms outside the layers.
    outer_vectors: int = 0
    counted: int = 0
    notes: tuple[str, ...] = ()
    #: The feed-forward half has a gate: three matrices, not two.
    gated: bool = True

    def _layer_sum(self, weights: Callable[[Layer], int]) -> int:
        return sum(map(weights, self.layers))

    @property
    def table_parameters(self) -> int:
        """The input embedding table, vocab x hidden."""
        return self.vocab * self.hidden

    @property
    def head_parameters(self) -> int:
        """The output head's matrix, vocab x hidden, whether or not it is shared with the input."""
        return self.vocab * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Parameters that are only looked up: positions, and the input table unless it is also the output head."""
        return self.positions + (0 if self.tied else self.table_parameters)

    @property
    def total_parameters(self) -> int:
        """All parameters, shared ones once: the published size of a model."""
        return self.active_parameters + self._layer_sum(lambda layer: layer.mlp_idle + layer.vectors_idle)

    @property
    def active_parameters(self) -> int:
        """Parameters in use for one token, embeddings included: the published "active" size of a mixture of experts."""
        layers = self._layer_sum(lambda layer: layer.attention + layer.mlp + layer.router + layer.vectors)
        return self.counted + layers + self.head_parameters + self.outer_vectors + self.embedding_parameters

    @property
    def layer_matmul_parameters(self) -> int:
        """Matrix weights of the layers that one token is multiplied with, routers left out."""
        return self._layer_sum(lambda layer: layer.attention + layer.mlp)

    @property
    def router_parameters(self) -> int:
        """Matrix weights that choose experts."""
        return self._layer_sum(lambda layer: layer.router)

    @property
    def matmul_parameters(self) -> int:
        """Matrix weights that one token meets: layers, routers, output head; a bare count as it is."""
        return self.counted + self.layer_matmul_parameters + self.router_parameters + self.head_parameters

    @property
    def low_rank_norms(self) -> int:
        """Norm weights inside low-rank attention projections."""
        return self._layer_sum(lambda layer: layer.low_rank_norms)

    def describe(self) -> str:
        """The shape in one line, with its source."""
        if not self.layers:
            return f"{self.name}: {self.counted / 1e9:.4g} billion parameters, nothing else known ({self.source})"
        active = ""
        if self.active_parameters != self.total_parameters:
            active = f", {self.active_parameters / 1e9:.4g} active for a token"
        return (
            f"{self.name}: {self.total_parameters / 1e9:.4g} billion parameters{active}, {len(self.layers)} layers, "
            f"hidden {self.hidden}, {self.heads} heads, {self.kv_heads} key-value heads, vocabulary {self.vocab}, "
            f"{'tied' if self.tied else 'untied'} embeddings ({self.source})"
        )
