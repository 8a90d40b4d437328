"""WebShop: catalogue, goals, search, pages and reward, against the facts of the original."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("bm25s", reason="for want of the extra webshop")
pytest.importorskip("Stemmer", reason="for want of the extra webshop")
pytest.importorskip("rapidfuzz", reason="for want of the extra webshop")

from divopd.environments.webshop import (
    EVALUATION_TASKS,
    FULL,
    HORIZON,
    SHORT,
    Product,
    Shop,
    WebShop,
    make_catalogue,
    open_shop,
    read_catalogue,
    stock_shop,
)
from divopd.environments.webshop.goals import Goal, exact_price
from divopd.environments.webshop.reward import reward, title_overlap, type_match
from divopd.environments.webshop.search import words
from divopd.errors import EnvironmentFailure, InputError

DATA = Path(os.environ.get("DIVOPD_DATA", "")) / "webshop"
needs_data = pytest.mark.skipif(
    "DIVOPD_DATA" not in os.environ or not DATA.is_dir(), reason="for want of the official data"
)

SHOES = Product(
    id="B000000001",
    title="Acme Leather Shoes for Men",
    description="Made for long walks.",
    bullets=("Rubber sole ", "easy care"),
    pricing=(41.5,),
    category="fashion",
    query="men's shoes",
    product_category="Clothing › Men › Shoes",
    options={"color": ("dark red", "black"), "size": ("9", "10")},
    attributes=("rubber sole", "long lasting"),
    instruction="Find me long lasting men's shoes with rubber sole",
    instruction_attributes=("long lasting", "rubber sole"),
)
LAMP = replace(
    SHOES,
    id="B000000002",
    title="Brass Lamp",
    bullets=("warm light",),
    description="",
    query="lamps",
    product_category="Home › Lighting › Lamps",
    options={},
    attributes=("brass finish",),
    instruction=None,
    instruction_attributes=(),
)


@pytest.fixture(scope="module")
def shop() -> Shop:
    return stock_shop((SHOES, LAMP))


@pytest.fixture(scope="module")
def made_up() -> Shop:
    return open_shop()


@pytest.fixture(scope="module")
def official() -> Shop:
    return open_shop(DATA)


def test_pages_read_as_the_original_writes_them(shop: Shop) -> None:
    """Every page is the visible strings of the original in its order, joined by [SEP]."""
    environment = WebShop(shop)
    goal = shop.goal("goal-00000").text
    top = f"Instruction: [SEP] {goal} [SEP] Back to Search [SEP] "
    first = environment.reset("goal-00000")
    assert first.text == f"WebShop [SEP] Instruction: [SEP] {goal} [SEP] Search"
    assert first.allowed_actions == ["search[<your query>]"]
    results = environment.step("search[Leather Shoes]")
    assert results.text == (
        f"{top}Page 1 (Total results: 1) [SEP] Next > [SEP] B000000001 [SEP] Acme Leather Shoes for Men [SEP] $41.5"
    )
    assert results.allowed_actions == ["click[back to search]", "click[next >]", "click[b000000001]"]
    item = environment.step("click[B000000001]")
    assert item.text == (
        f"{top}< Prev [SEP] color [SEP] dark red [SEP] black [SEP] size [SEP] 9 [SEP] 10 [SEP] "
        "Acme Leather Shoes for Men [SEP] Price: $41.5 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] "
        "Reviews [SEP] Buy Now"
    )
    assert environment.step("click[features]").text == f"{top}< Prev [SEP] Rubber sole [SEP] easy care"
    assert environment.step("click[< prev]").text == item.text
    assert environment.step("click[< prev]").text == results.text
    assert environment.step("click[next >]").text == f"{top}Page 2 (Total results: 1) [SEP] < Prev [SEP] Next >"
    assert environment.step("click[back to search]").text == first.text


def test_a_search_shows_ten_a_page_and_fifty_at_most(made_up: Shop) -> None:
    """The top 50 in five pages of ten; the sixth page is empty and changes nothing else."""
    environment = WebShop(made_up)
    environment.reset("goal-00000")
    observation = environment.step("search[shirt jacket table lotion tea camera by small maker]")
    seen: list[str] = []
    for _ in range(5):
        assert "(Total results: 50)" in observation.text
        ids = [action for action in observation.allowed_actions or [] if action.startswith("click[p")]
        assert len(ids) == 10
        seen += ids
        observation = environment.step("click[next >]")
    assert len(set(seen)) == 50
    assert observation.allowed_actions == ["click[back to search]", "click[< prev]", "click[next >]"]


def test_buying_the_right_thing_is_worth_one(shop: Shop) -> None:
    """Right product and options give 1 and success; a wrong option or none loses exactly its share."""
    number = next(n for n, goal in enumerate(shop.goals) if goal.options == ("black", "10"))
    for clicks, expected in ((("black", "10"), 1.0), (("dark red", "10"), 4 / 5), ((), 3 / 5)):
        environment = WebShop(shop)
        environment.reset(f"goal-{number:05d}")
        environment.step("search[shoes]")
        environment.step("click[b000000001]")
        for value in clicks:
            environment.step(f"click[{value}]")
        end = environment.step("click[buy now]")
        assert (end.done, end.reward, end.success) == (True, pytest.approx(expected), expected == 1.0)


def test_leaving_an_item_forgets_its_options_and_a_sub_page_keeps_them(shop: Shop) -> None:
    """The mark of SHORT pages shows what is chosen: kept through Features, gone after a way back to the results."""
    environment = WebShop(shop, layout=SHORT)
    environment.reset("goal-00000")
    environment.step("search[shoes]")
    environment.step("click[b000000001]")
    environment.step("click[black]")
    environment.step("click[features]")
    assert "\n* black\n" in environment.step("click[< prev]").text
    environment.step("click[< prev]")
    assert "*" not in environment.step("click[b000000001]").text


def test_reward_follows_the_formula() -> None:
    """Type, attributes, options and price each enter as the original computes them."""
    goal = Goal("", SHOES, ("rubber sole", "easy care", "waterproof"), ("dark red", "9"), 50.0)
    assert reward(goal, SHOES, ["dark red", "9"], price=41.5) == pytest.approx(5 / 6)  # one attribute is missing
    # too dear; the colours "dark red" and "dark silver" are both reduced to the first in the benchmark's list, "dark"
    assert reward(goal, SHOES, ["dark silver"], price=60.0) == pytest.approx(3 / 6)
    assert reward(goal, LAMP, ["9"], price=10.0) == 0.0  # no noun in common
    assert title_overlap("Leather Boots", SHOES.title) == pytest.approx(1 / 4)
    other = replace(SHOES, title="Canvas Shoes", query="x", product_category="Toys")
    assert type_match(other, SHOES) == 1.0  # more than a fifth of the nouns
    assert type_match(other, replace(SHOES, title="Acme One Two Three Four Five Shoes")) == 0.5
    assert type_match(other, replace(SHOES, title="Acme " + "Word " * 12 + "Shoes")) == 0.1
    assert title_overlap("Anything", "the 42 of") == 0.2


def test_words_are_those_of_lucenes_english_analyzer() -> None:
    """Hyphens split, dots in numbers and apostrophes in words do not, possessives and stop words go."""
    assert words("Men's V-neck, 12.5 oz. of the don't USB-C 3.0 snack/bar") == (
        ["men", "v", "neck", "12.5", "oz", "don't", "usb", "c", "3.0", "snack", "bar"]
    )


def test_the_price_limit_is_one_of_the_next_four_tens(made_up: Shop) -> None:
    """A limit is a multiple of ten, above the price by at most forty, and never the lowest of the four."""
    for goal in made_up.goals:
        price = exact_price(goal.product, seed=made_up.seed)
        assert goal.price_limit % 10 == 0
        assert price + 10 < goal.price_limit <= price + 40 or goal.price_limit == 10 * (price // 10) + 20
        assert goal.text.endswith(f", and price lower than {goal.price_limit:.2f} dollars")


def test_splits(made_up: Shop) -> None:
    """Test goals are 0–499, training starts at 500, an evaluation has 128 tasks of 15 turns."""
    test, train = made_up.tasks("test"), made_up.tasks("train")
    assert (test[0], test[-1], len(test)) == ("goal-00000", "goal-00499", 500)
    assert train == [f"goal-{number:05d}" for number in range(500, len(made_up.goals))]
    assert (HORIZON, EVALUATION_TASKS) == (15, 128)
    with pytest.raises(InputError, match="none is left to train on"):
        stock_shop((SHOES,)).tasks("train")


def test_order_does_not_depend_on_the_hash_seed() -> None:
    """Two processes with different hash seeds list the same goals and find the same products."""
    script = (
        "from divopd.environments.webshop import open_shop; s = open_shop(seed=3); import hashlib;"
        "found = [s.index.search(g.text) for g in s.goals[:40]];"
        "print(hashlib.sha256(repr(([g.text for g in s.goals], found)).encode()).hexdigest())"
    )
    source = str(Path(__file__).parents[2] / "src")
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": source},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_wrong_option_or_property_of_the_synthetic_catalogue_never_passes_as_right() -> None:
    """No two values of an option and no two properties of a department are alike enough to be taken for each other."""
    products = make_catalogue()
    for product in products[:60]:
        for wanted in (value for values in product.options.values() for value in values):
            goal = Goal("", product, ("x",), (wanted,), 0.0)
            right = {
                value
                for values in product.options.values()
                for value in values
                if reward(goal, product, [value], price=1)
            }
            assert right == {wanted}
        properties = {name for other in products if other.category == product.category for name in other.attributes}
        own = {name for name in properties if reward(Goal("", product, (name,), (), 0.0), product, [], price=1)}
        assert own == set(product.attributes)


@pytest.mark.parametrize(("products", "kinds"), [(0, 1), (5, 6), (40, 31), (40, 0), (100_000, 30)])
def test_impossible_catalogue_sizes_are_refused(products: int, kinds: int) -> None:
    """A size that cannot be made is an InputError that says which sizes can."""
    with pytest.raises(InputError, match="expected 1 to 30 kinds"):
        make_catalogue(products=products, kinds=kinds)


def test_short_pages_are_short() -> None:
    """With a small catalogue every short page has at most 80 words, the task included, and few words occur at all."""
    shop = stock_shop(make_catalogue(products=60, kinds=6))
    environment = WebShop(shop, layout=SHORT)
    vocabulary: set[str] = set()
    for task in shop.tasks("test")[:60]:
        environment.reset(task)
        for action in ("search[table]", "click[next >]", "search[shirt]"):
            observation = environment.step(action)
            assert len(observation.text.split()) <= 80
            vocabulary |= set(observation.text.lower().split())
    assert len(vocabulary) < 300


# the official files


@needs_data
def test_the_small_official_set_has_its_known_numbers(official: Shop) -> None:
    """1,000 products, 6,910 synthetic goals, 13 human goals; training has 6,410."""
    assert (len(official.products), len(official.goals)) == (1000, 6910)
    assert len(open_shop(DATA, goals="human").goals) == 13
    assert len(official.tasks("train")) == 6410


def test_official_files_are_read_as_the_original_reads_them(tmp_path: Path) -> None:
    """Prices, options, ids and instructions of items_shuffle, items_ins_v2 and items_human_ins become products."""
    row = {
        "asin": "B01",
        "name": "Mug\x1b[31m",
        "full_description": None,
        "small_description": "a mug",
        "pricing": "$1,019.99$27.00$5",
        "category": "garden",
        "query": " Mugs ",
        "product_category": "Home › Mugs",
        "customization_options": {"Size": [{"value": " S/M ", "image": None}], "Kind": None},
    }
    rows = [
        row,
        row | {"name": "again"},
        row | {"asin": "nan"},
        row | {"asin": "B" * 11},
        row | {"asin": "B02", "pricing": ""},
    ]
    (tmp_path / "items_shuffle_1000.json").write_text(json.dumps(rows))
    with pytest.raises(InputError, match="needs items_ins_v2_1000"):
        read_catalogue(tmp_path)
    instructions = {
        "B01": {"attributes": ["big"], "instruction": "Find me big mugs", "instruction_attributes": ["big"]}
    }
    (tmp_path / "items_ins_v2_1000.json").write_text(json.dumps(instructions))
    human = {"B01": [{"instruction": "a mug.", "instruction_attributes": ["big"], "instruction_options": ["s | m"]}]}
    (tmp_path / "items_human_ins.json").write_text(json.dumps(human))
    first, second = read_catalogue(tmp_path)
    assert (first.title, first.description, first.bullets, first.query) == ("Mug [31m", "", ("a mug",), "mugs")
    assert (first.pricing, first.price_tag, second.price_tag) == ((1019.99, 27.0), "$1019.99 to $27.0", "$100.0")
    assert first.options == {"size": ("s | m",)}
    assert first.human[0].options == ("s | m",)
    assert read_catalogue(tmp_path / "items_shuffle_1000.json") == (first, second)
    assert open_shop(tmp_path, goals="human").goals[0].text.startswith("a mug")


# contained failures


@pytest.mark.parametrize(
    "action",
    ["x" * 100_000, "search[" + "red " * 25_000 + "]", "click[no such thing]", "", "search[]", "click[search]", "buy",
     "\x1b[31mclick[back to search]", "search[a\nb]", "click[b000000002]", "<|im_end|>"],
)  # fmt: skip
def test_an_action_that_is_not_understood_changes_nothing(shop: Shop, action: str) -> None:
    """Garbage, 100 kB, escapes, unknown clicks: an invalid turn on the same page, and the rollout goes on."""
    environment = WebShop(shop)
    before = environment.reset("goal-00000")
    after = environment.step(action)
    assert after == replace(before, valid=False)
    assert environment.step("search[shoes]").valid


def test_a_search_finds_only_products_that_share_a_word(made_up: Shop) -> None:
    """A word of fewer than 50 products finds exactly those, in a catalogue of many more."""
    having = {number for number, product in enumerate(made_up.products) if product.title.startswith("Norvik ")}
    assert 0 < len(having) < 50 < len(made_up.products)
    assert set(made_up.index.search("norvik")) == having


def test_a_query_of_unknown_words_finds_nothing(shop: Shop) -> None:
    """No shared word, no product; stop words and symbols alone find nothing either."""
    environment = WebShop(shop)
    environment.reset("goal-00000")
    for query in ("zzzz", "the of", "$$$", "<r>"):
        observation = environment.step(f"search[{query}]")
        assert observation.valid
        assert "Total results: 0" in observation.text


def test_a_long_observation_is_cut() -> None:
    """A page longer than the cap is cut there; its buttons can still be clicked."""
    shop = stock_shop((replace(SHOES, description="word " * 50_000),))
    environment = WebShop(shop, max_chars=2_000)
    environment.reset("goal-00000")
    environment.step("search[shoes]")
    environment.step("click[b000000001]")
    page = environment.step("click[description]")
    assert len(page.text) == 2_000
    assert environment.step("click[< prev]").valid


@pytest.mark.parametrize("task", ["goal-00004", "goal-4", "", "goal-", "goal-٠٠٠٠٠", "../x", "goal-" + "9" * 5000])
def test_a_wrong_task_name_says_what_is_expected(shop: Shop, task: str) -> None:
    """An unknown task is an InputError that names the range, and the environment works on."""
    environment = WebShop(shop)
    with pytest.raises(InputError, match="expected goal-00000 to goal-00003") as error:
        environment.reset(task)
    assert len(str(error.value)) < 200
    assert environment.reset("goal-00001").valid


def test_acting_without_a_task_is_a_failure_of_that_rollout_only(shop: Shop) -> None:
    """A step before a reset, or after the purchase, fails; the next reset works."""
    environment = WebShop(shop)
    with pytest.raises(EnvironmentFailure):
        environment.step("search[shoes]")
    environment.reset("goal-00000")
    for action in ("search[lamp]", "click[b000000002]", "click[buy now]"):
        environment.step(action)
    with pytest.raises(EnvironmentFailure, match="call reset"):
        environment.step("search[shoes]")
    assert environment.reset("goal-00000").valid


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, "", "no products in"),
        ("x.jsonl", "{not json", "get the file again"),
        ("x.jsonl", '{"asin": "B1"}', "unexpected form"),
        ("x.jsonl.xz", "plain text", "get the file again"),
    ],
)
def test_missing_or_damaged_data_is_a_clear_error(tmp_path: Path, name: str | None, content: str, message: str) -> None:
    """No folder, an empty folder, broken JSON, a missing field, no real xz: one line that says what to do."""
    with pytest.raises(InputError, match="no WebShop data at"):
        open_shop(tmp_path / "nowhere")
    if name:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        open_shop(tmp_path)


def test_layouts_differ_only_in_words(shop: Shop) -> None:
    """The same actions lead to the same purchase in both layouts."""
    rewards = []
    for layout in (FULL, SHORT):
        environment = WebShop(shop, layout=layout)
        environment.reset("goal-00002")
        for action in ("search[shoes]", "click[b000000001]", "click[description]", "click[< prev]", "click[9]"):
            assert environment.step(action).valid
        rewards.append(environment.step("click[buy now]").reward)
    assert rewards[0] == rewards[1] > 0
