"""Word lists: plain vocabulary that the search, the reward and the synthetic catalogue share with the benchmark."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# what Lucene's English analyzer drops
STOP_WORDS = frozenset(
    _words("""
    a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with
    """)
)

# the benchmark's colour vocabulary, in its order: the first that occurs in an option value stands for the value
COLOURS = _words("""
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
    caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream
    crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather
    indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha
    multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal
    rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise
    violet walnut wheat white wine yellow
    """)

# words of shop titles that are no nouns (ours; see reward.py)
NOT_NOUNS = frozenset(
    _words("""
    adjustable all best big black blue breathable brown casual classic clear comfortable cute dark deep double dry
    durable easy elegant extra fashionable fast fine flat free fresh full gray great green grey heavy high hot large
    light long loose low medium mini modern more multi natural new nice old orange organic outdoor pink plain
    portable premium pure purple quick real red regular round sexy short simple single slim small smart smooth soft
    solid square strong super thick thin tiny unique universal vintage warm white wide wireless yellow your our my
    his her you we from up out over off only
    """)
)

# made-up makers of the synthetic catalogue
BRANDS = _words("""
    Alder Borea Corvin Dunmore Elowen Farrow Galt Hestia Ivarr Juno Kestrel Lumen Marlow Norvik Orsa
    """)
