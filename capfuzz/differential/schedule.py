"""How a case is driven: warm-ups, graphs, what happens between capture and replay.

Most faults of graphs are about which bytes a graph reads at replay, and a test that drives the graph kindly does not see them.
So the way of driving is part of the case: generated, minimised, named in the finding.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

COLD = 0


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One way of driving; each default is the simplest.

    - `warm_ups`: bodies that run before the capture for one `prepare`, each compared with the first. 0 is a cold start: nothing
      of the implementation has run in the process.
    - `second`: another graph in the same pool, replayed in turn with the first one: for the same case (`twin`), for twice as
      many rows (`bucket`), or for another value of the axis `axis` (`value`).
    - `second_dies`: the other graph is captured first and is gone before the first replay.
    - `between`: before the first replay, nothing; memory that was freed is reused (`churn`); an eager run with twice as many
      rows (`larger`); or both.
    - `eager_between`: an eager call with other inputs in front of every replay but the first.
    - `eager_layout`: eager runs on arguments that lie as the graph's do (`same`), or `contiguous`.
    """

    warm_ups: Annotated[int, msgspec.Meta(ge=0, le=3)] = 1
    second: Literal["none", "twin", "bucket", "value"] = "none"
    axis: str | None = None
    second_dies: bool = False
    between: Literal["nothing", "churn", "larger", "both"] = "nothing"
    eager_between: bool = False
    eager_layout: Literal["same", "contiguous"] = "same"

    @property
    def is_cold(self) -> bool:
        return self.warm_ups == COLD

    @property
    def churns(self) -> bool:
        return self.between in ("churn", "both")

    @property
    def grows(self) -> bool:
        return self.between in ("larger", "both")

    def needs(self) -> list[str]:
        """What is not simplest, in words: `a cold start`, `two graphs in one pool`."""
        words = {0: "a cold start", 2: "a second warm-up", 3: "a third warm-up"}
        found = [words[self.warm_ups]] if self.warm_ups in words else []
        graphs = {
            "twin": "two graphs in one pool",
            "bucket": "two graphs in one pool, the other with twice as many rows",
            "value": f"two graphs in one pool, the other with another {self.axis}",
        }
        if self.second != "none":
            found.append(graphs[self.second] + (", which is destroyed before the replay" if self.second_dies else ""))
        if self.churns:
            found.append("freed memory to be reused between capture and replay")
        if self.grows:
            found.append("an eager run with twice as many rows between capture and replay")
        if self.eager_between:
            found.append("an eager call between two replays")
        if self.eager_layout == "contiguous":
            found.append("contiguous inputs in eager, views of static buffers at replay")
        return found


SIMPLEST = Schedule()
