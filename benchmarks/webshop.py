"""WebShop: searches per second against stock bm25s, agreement with a plain BM25, actions of the environment per second.

Stock bm25s is what one installs and calls: its own tokenizer and English stop words, the same stemmer. Agreement is
with BM25 written out term by term over our tokens, once as the formula stands and once with document lengths rounded to
one byte as Lucene stores them, which is the nearest to the original's index that runs without Java. Products: the
official ones under DIVOPD_DATA, else the synthetic catalogue; queries: what the expert searches for the test goals.
"""

import heapq
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import bm25s
import Stemmer

from divopd.environments.webshop import HORIZON, Expert, Shop, WebShop, open_shop
from divopd.environments.webshop.search import K1, TOP, B, SearchIndex, searchable_text
from divopd.experiments.peers import interleaved, ratio, timed

Search = Callable[[str], Sequence[int]]


class Sizes(NamedTuple):
    queries: int
    rounds: int
    goals: int  # of the synthetic catalogue, for the expert


FULL = Sizes(queries=300, rounds=9, goals=500)
QUICK = Sizes(queries=3, rounds=1, goals=3)


class PlainBM25:
    """Robertson's formula with Lucene's idf, as plain as it can be written."""

    def __init__(self, index: SearchIndex, texts: list[str], *, length_of: Callable[[int], int]) -> None:
        documents = [index.stems(text) for text in texts]
        self._stems = index.stems
        self._counts = [Counter(document) for document in documents]
        self._found_in = Counter(stem for counts in self._counts for stem in counts)
        mean = sum(map(len, documents)) / len(documents)
        self._norms = [K1 * (1 - B + B * length_of(len(document)) / mean) for document in documents]

    def search(self, query: str) -> list[int]:
        stems = self._stems(query)
        scores = [self._score(stems, number) for number in range(len(self._counts))]
        best = heapq.nsmallest(TOP, range(len(scores)), key=lambda number: (-scores[number], number))
        return [number for number in best if scores[number] > 0]

    def _score(self, stems: list[str], number: int) -> float:
        counts, norm = self._counts[number], self._norms[number]
        return sum(self._idf(stem) * counts[stem] / (counts[stem] + norm) for stem in stems if stem in counts)

    def _idf(self, stem: str) -> float:
        found_in = self._found_in[stem]
        return math.log(1 + (len(self._counts) - found_in + 0.5) / (found_in + 0.5))


def lucene_length(length: int) -> int:
    """A document length after a round trip through Lucene's one byte: exact below 40, then four leading bits."""
    exact = 24
    if length < exact:
        return length
    shift = max((length - exact).bit_length() - 4, 0)
    return exact + ((length - exact) >> shift << shift)


def stock_search(texts: list[str]) -> Search:
    """bm25s with the tokenizer it comes with, its English stop words and the same stemmer."""
    stemmer = Stemmer.Stemmer("porter")
    index = bm25s.BM25(method="lucene", k1=K1, b=B)
    index.index(bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False), show_progress=False)

    def search(query: str) -> list[int]:
        tokens = bm25s.tokenize(query, stopwords="en", stemmer=stemmer, show_progress=False, return_ids=False)
        found, _ = index.retrieve(tokens, k=min(TOP, len(texts)), show_progress=False)
        return [int(number) for number in found[0]]

    return search


def agreement(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> dict[str, float]:
    pairs = list(zip(ours, theirs, strict=True))
    return {
        "top1": sum(a[:1] == b[:1] for a, b in ((list(a), list(b)) for a, b in pairs)) / len(pairs),
        "overlap_at_10": sum(len({*a[:10]} & {*b[:10]}) / max(len(b[:10]), 1) for a, b in pairs) / len(pairs),
    }


def expert_searches(shop: Shop, tasks: list[str]) -> dict[str, str]:
    """What the expert would search for, by task: its first action is `search[query]`."""
    environment, expert = WebShop(shop), Expert()
    queries: dict[str, str] = {}
    for task in tasks:
        observation = environment.reset(task)
        expert.reset(observation)
        queries[task] = expert.act(observation).removeprefix("search[").removesuffix("]")
    return queries


def actions_per_s(shop: Shop, queries: dict[str, str], rng: random.Random) -> float:
    """Of the environment alone: random allowed actions, the expert's search where there is a search bar."""
    environment, actions, seconds = WebShop(shop), 0, 0.0
    for task, query in queries.items():
        observation = environment.reset(task)
        for _ in range(HORIZON):
            action = rng.choice(observation.allowed_actions or [])
            if action.startswith("search["):
                action = f"search[{query}]"
            start = time.perf_counter()
            observation = environment.step(action)
            seconds += time.perf_counter() - start
            actions += 1
            if observation.done:
                break
    return actions / seconds


def expert_success(shop: Shop, tasks: list[str]) -> dict[str, float]:
    environment, expert, successes, reward = WebShop(shop), Expert(), 0, 0.0
    for task in tasks:
        observation = environment.reset(task)
        expert.reset(observation)
        for _ in range(HORIZON):
            observation = environment.step(expert.act(observation))
            if observation.done:
                break
        successes += observation.success
        reward += observation.reward
    return {"success": successes / len(tasks), "mean_reward": reward / len(tasks)}


def run(sizes: Sizes) -> dict[str, object]:
    folder = Path(os.environ.get("DIVOPD_DATA", "")) / "webshop"
    data = folder if "DIVOPD_DATA" in os.environ and folder.is_dir() else None
    shop = open_shop(data)
    tasks = shop.tasks("test")[: sizes.queries]
    queries = expert_searches(shop, tasks)
    asked = list(queries.values())
    texts = [searchable_text(product) for product in shop.products]
    plain = PlainBM25(shop.index, texts, length_of=lambda length: length)
    rounded = PlainBM25(shop.index, texts, length_of=lucene_length)

    stock = stock_search(texts)
    figures = interleaved(
        {
            "divopd": lambda: timed(lambda: [shop.index.search(query) for query in asked]),
            "stock_bm25s": lambda: timed(lambda: [stock(query) for query in asked]),
        },
        rounds=sizes.rounds,
    )
    exact = [plain.search(query) for query in asked]
    ours = [shop.index.search(query) for query in asked]
    return {
        "bench": "webshop",
        "ratio": ratio(figures, ours="divopd", theirs="stock_bm25s"),
        "unit": "searches per processor second, against stock bm25s",
        "ours": len(asked) / figures["divopd"]["processor_s"],
        "reference": len(asked) / figures["stock_bm25s"]["processor_s"],
        "detail": {
            "products": len(shop.products),
            "goals": len(shop.goals),
            "queries": len(queries),
            "seconds_for_all_queries": figures,
            "actions_per_s": actions_per_s(shop, queries, random.Random(0)),
            "agreement_with_plain_bm25": agreement(ours, exact),
            "agreement_with_lucene_lengths": agreement(ours, [rounded.search(query) for query in asked]),
            "stock_tokenizer_agreement_with_plain_bm25": agreement([stock(query) for query in asked], exact),
            "expert_on_these_goals": expert_success(shop, tasks),
            "expert_on_synthetic_catalogue": expert_success(
                made_up := open_shop(), made_up.tasks("test")[: sizes.goals]
            ),
        },
    }
