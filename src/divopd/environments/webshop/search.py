"""Search over the products: BM25 as the original's Lucene index computes it, with bm25s.

Tokens imitate Lucene's English analyzer: words may be joined by an apostrophe, dot or colon between letters and by a
dot or comma between digits; a possessive 's is cut, Lucene's stop words are dropped, the rest is stemmed with
Porter's stemmer. Not imitated: Lucene stores document lengths rounded to one byte, which swaps a few neighbours in
the ranking.
"""

import re
from collections.abc import Sequence

import numpy as np

from divopd.environments.webshop.catalogue import Product
from divopd.environments.webshop.lexicon import STOP_WORDS
from divopd.errors import MissingExtraError

K1, B = 0.9, 0.4
TOP = 50  # a search never shows more

_WORD = re.compile(r"\w+(?:(?:(?<=[^\W\d_])['’.:](?=[^\W\d_])|(?<=\d)[.,](?=\d))\w+)*")


def words(text: str) -> list[str]:
    """The words of a text as the index sees them, before stemming."""
    found = (word.removesuffix("'s").removesuffix("’s") for word in _WORD.findall(text.lower()))
    return [word for word in found if word and word not in STOP_WORDS]


def searchable_text(product: Product) -> str:
    """What is indexed of a product: title, description, first bullet, options. Later bullets cannot be searched."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join([product.title, product.description, *product.bullets[:1], options]).lower()


class SearchIndex:
    """Finds products by words. Equal scores keep catalogue order, so a query has one answer on every machine."""

    def __init__(self, products: Sequence[Product]) -> None:
        try:
            import bm25s
            import Stemmer
        except ImportError as error:
            raise MissingExtraError("WebShop's search (bm25s, PyStemmer)", "webshop") from error
        self._stem = Stemmer.Stemmer("porter").stemWords
        # the vocabulary is ours, in first-seen order: bm25s would number the words by hash
        self._vocabulary: dict[str, int] = {}
        documents = [
            [self._vocabulary.setdefault(stem, len(self._vocabulary)) for stem in self.stems(searchable_text(product))]
            for product in products
        ]
        self._index = bm25s.BM25(method="lucene", k1=K1, b=B)
        self._index.index((documents, self._vocabulary), show_progress=False)

    def stems(self, text: str) -> list[str]:
        return self._stem(words(text))

    def search(self, query: str) -> tuple[int, ...]:
        """Numbers of the best products, best first, at most `TOP`; a product that shares no word is never found."""
        known = [self._vocabulary[stem] for stem in self.stems(query) if stem in self._vocabulary]
        if not known:
            return ()
        scores = self._index.get_scores_from_ids(known)
        if len(scores) > TOP:
            threshold = np.partition(scores, -TOP)[-TOP]
            found = np.flatnonzero((scores >= threshold) & (scores > 0))
        else:
            found = np.flatnonzero(scores > 0)
        best = found[np.argsort(-scores[found], kind="stable")][:TOP]
        return tuple(int(number) for number in best)
