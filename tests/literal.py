"""Algorithm 1 of the paper, transcribed word by word, slow and obvious: what the fast composer must agree with."""

from divopd.turns import Turn
from divopd.validity import disagreement, why_invalid


class LiteralDivOPD:
    """Steps 1 to 9. `buffer` is the rollout buffer: scored turns in arrival order, consumed from the front."""

    def __init__(self, *, B: int, c: int, k: int | None, delta: int, W: int) -> None:
        self.B, self.c, self.k, self.delta, self.W = B, c, k, delta, W
        self.P: list[Turn] = []
        self.first_seen: dict[tuple[str, int], int] = {}

    def update(self, q: int, buffer: list[Turn]) -> dict[str, list]:
        out: dict[str, list] = {"stale": [], "invalid": [], "aged_out": []}
        # 1
        v_min = max(q - self.delta, 0)
        out["stale"] += [u for u in self.P if u.version < v_min]
        P = [u for u in self.P if u.version >= v_min]
        # 2
        F: list[Turn] = []
        while buffer and len(P) + len(F) < self.c * self.B:
            u = buffer.pop(0)
            if u.version < v_min:
                out["stale"].append(u)
            else:
                F.append(u)
        C = P + F
        # 3
        V = []
        for u in C:
            if why_invalid(u) is None:
                V.append(u)
            else:
                out["invalid"].append(u)
        for u in F:
            self.first_seen[u.key] = q
        # 4
        rollouts = sorted({u.rollout for u in V}, key=lambda r: (self._oldest(V, r), r))
        # 5
        group = {}
        for r in rollouts:
            group[r] = sorted((u for u in V if u.rollout == r), key=lambda u: (-disagreement(u), u.rollout, u.turn))
        S: list[Turn] = []
        h = self.k if self.k is not None else max((len(g) for g in group.values()), default=1)
        # 6
        self._sweep(rollouts, group, S, h)
        # 7
        while len(S) < self.B and len(S) < len(V):
            h += 1
            self._sweep(rollouts, group, S, h)
        # 8
        rest = [u for u in V if u not in S]
        self.P = [u for u in rest if q - self.first_seen[u.key] <= self.W]
        out["aged_out"] = [u for u in rest if q - self.first_seen[u.key] > self.W]
        # 9
        return {**out, "selected": S}

    def _oldest(self, V: list[Turn], r: str) -> int:
        return min(self.first_seen[u.key] for u in V if u.rollout == r)

    def _sweep(self, rollouts: list[str], group: dict[str, list[Turn]], S: list[Turn], h: int) -> None:
        for r in rollouts:
            for u in group[r]:
                given = sum(s.rollout == r for s in S)
                if u not in S and given < h and len(S) < self.B:
                    S.append(u)
