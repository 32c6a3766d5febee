"""The prompts that the finale serves."""

# Openings as the stories have them (see training/corpus.py): a small model goes on well only from what looks like
# the starts that it saw. They are written out here, so that serving needs no generator, and their lengths differ on
# purpose: a batch of equal ones would hide what continuous batching is for.
FINALE_PROMPTS = (
    "Once upon a time",
    "Once upon a time, in a small village by the sea, there lived a little fox named Mia. What Mia loved most was to "
    "watch the stars",
    "There once was a hedgehog named Otto who lived at the edge of a deep forest. Every evening, Otto liked to sing.",
    "Long ago, at the foot of a tall mountain, there lived a young girl named Nora.",
    "Once there was a small otter named Pip, who lived beside a slow river. More than anything, Pip loved to look at "
    "the clouds. His best friend was a mole named Ruby.",
    "This is the story of a little rabbit named Hazel, who lived on a quiet farm. What Hazel loved most was to pick",
    "Once upon a time, there was a young boy named Theo who lived in a little town with red roofs. Every morning, "
    "Theo liked to bake cakes. Next door lived a frog named Lulu, and they were the",
    "Once upon a time, there lived a curious mouse named Ned,",
    "There once was a girl named Clara who lived in a house with a crooked chimney. Clara was clever and loved to fix "
    "things.",
    "Once there was a cheerful bear named Bruno, who lived near a round pond. More than anything, Bruno loved to "
    "dance. He had a friend, a duck named Dot, and the two did everything together.\n\nOne",
    "Long ago, on a sunny island, there lived a gentle pony named Poppy. Poppy was kind and loved to run fast.",
    "This is the story of a small squirrel named Gus, who lived in a green valley. Every day, Gus liked to eat "
    "pancakes. His best friend was a girl named Ivy.",
    "Once upon a time, there was a little badger named Winnie",
    "Once upon a time, in a blue house on a hill, there lived a small boy named Leo. What Leo loved most was to draw "
    "maps. His best friend was a puppy named Tilly.\n\nOne",
    "Once there was a little kitten named Felix, who",
    "There once was a raccoon named Suki who lived in a cosy house under an old oak tree. More than anything, Suki "
    "loved to stay up late. Next door lived",
)
