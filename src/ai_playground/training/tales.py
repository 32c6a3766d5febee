"""What the stories are made of: names, characters, places, and the tales themselves.

A tale is a text with choices. `[a|b]` is a choice of wording and changes nothing that happens. `{thing}` is a slot
of the plot: the values that fill the slots are what tells one plot from another. `{H}` is the hero and `{F}` the
friend; `{H.he}`, `{H.He}`, `{H.him}` and `{H.his}` their pronouns. A line that begins with `? ` may be left out, and
an empty line begins a paragraph. Names stand after a space, never at the start of a quotation or a paragraph: a name
is then one and the same token wherever it occurs, which makes it easy to copy.
"""

# ruff: noqa: E501, SIM905 (prose: a line is a line of the story, however long; word lists read best unquoted)

from typing import NamedTuple


class Tale(NamedTuple):
    """One kind of story: what its hero loves, its slots with the values that each may take, and its text.

    Each love comes with what the hero does after the adventure. It hints at the tale, so that a story hangs together
    from its first lines (and a model that always takes the likeliest word tells different tales to different prompts).
    """

    loves: tuple[tuple[str, str], ...]
    slots: dict[str, tuple[str, ...]]
    text: str


GIRLS = (
    "Lily Mia Rosa Nora Ella Anna Zoe Ruby Maya Ivy Clara Tilly Poppy Wren Hazel Daisy Nell Juno Lulu Fern Olive Pia "
    "Greta Molly Suki Bella Dot Winnie"
).split()
BOYS = (
    "Tom Max Ben Leo Sam Finn Oscar Hugo Jack Theo Milo Pip Otto Rufus Toby Felix Barney Ned Gus Archie Kit Jasper Remy "
    "Bruno Alfie Teddy Monty Basil"
).split()

ANIMALS = (
    "fox rabbit bear mouse hedgehog otter squirrel badger frog kitten puppy mole beaver piglet raccoon pony lamb duck"
).split()

PLACES = (
    "in a small village by the sea",
    "in a green valley",
    "at the edge of a deep forest",
    "on a quiet farm",
    "in a blue house on a hill",
    "beside a slow river",
    "at the foot of a tall mountain",
    "in a little town with red roofs",
    "on a sunny island",
    "in a cosy house under an old oak tree",
    "near a round pond",
    "in a house with a crooked chimney",
)

OPENINGS = (
    "Once upon a time, {place}, there lived [a little|a young|a small] {H.kind} named {H}.",
    "Once upon a time, there was [a little|a young|a small] {H.kind} named {H} who lived {place}.",
    "Once upon a time, there lived [a little|a brave|a curious] {H.kind} named {H}, {place}.",
    "Once there was [a little|a cheerful|a small] {H.kind} named {H}, who lived {place}.",
    "Long ago, {place}, there lived [a little|a young|a gentle] {H.kind} named {H}.",
    "There once was {H.a_kind} named {H} who lived {place}.",
    "This is the story of a [little|small|cheerful] {H.kind} named {H}, who lived {place}.",
)

LIKES = (
    "More than anything, {H} loved to {love}.",
    "Every [morning|evening|day], {H} liked to {love}.",
    "{H} was [kind|clever|merry|friendly] and loved to {love}.",
    "What {H} loved most was to {love}.",
)

FRIENDS = (
    "{H.His} best friend was {F.a_kind} named {F}.",
    "{H.He} had a friend, {F.a_kind} named {F}, and the two did everything together.",
    "Next door lived {F.a_kind} named {F}, and they were the best of friends.",
    "Every day, {H} played with {F.a_kind} named {F}.",
)

SEQUELS = (
    "But that is not the end of the story, for soon there was another adventure.",
    "A week later, something else happened.",
    "And that was not their last adventure.",
)

# Tales that end at night or at home go on a day later; all others end with EVENINGS.
HOME_TALES = ("noise", "moon", "sleep", "soup", "lostway")
NEXT_EVENINGS = (
    "The next evening, {H} {callback}. [The end.|It had been a very good day.|And that night everyone slept well.]",
    "And the next evening, {H} {callback}[, and {F} stayed for supper|]. [The end.|Good night, {H}, and sleep well.]",
)
EVENINGS = (
    "That evening, {H} {callback}. [And then {H.he} fell asleep with a smile.|It had been a very good day.|The end.]",
    "Before bed, {H} {callback}. [{F} thought it was the best story in the world.|Then the moon came up, and all was well.]",
    "When [the sun went down|the stars came out], {H} {callback}[, and {F} stayed for supper|]. [The end.|Good night, {H}, and sleep well.]",
    "Then they went home [hand in hand|side by side], and {H} {callback}. [The end.|And everyone slept well that night.]",
)

TALES = {
    "lost": Tale(
        (
            ("collect buttons", "put one more button into the button box"),
            ("play hide and seek", "hid behind the door once more, just for fun"),
        ),
        {
            "thing": (
                "red ball",
                "silver whistle",
                "blue scarf",
                "wooden boat",
                "yellow hat",
                "little drum",
                "green lantern",
                "picture book",
                "toy train",
                "gold button",
                "striped sock",
                "paper crown",
            ),
            "first": ("under the bed", "behind the door", "in the kitchen", "under the stairs", "in the big basket"),
            "second": (
                "by the pond",
                "in the tall grass",
                "under the old bridge",
                "behind the mill",
                "at the market",
                "on the hill",
            ),
            "found": (
                'Just then they heard a soft peep above them. A small bird had carried the {thing} up to her nest to keep her eggs warm. "She needs it more than I do," whispered {H}. So {H.he} let the bird keep the {thing} until the eggs had hatched. [Three|Four] tiny birds came out, and they sang for {H} every morning.',
                'Then {F} turned very red. "I took the {thing} to show my mother, and I forgot to bring it back," {F.he} said in a small voice. "I am sorry." {H} was quiet for a moment. Then {H.he} gave {F} a big hug. "Thank you for telling me," {H.he} said, and they played with the {thing} together.',
                "Then a big dog came by with muddy paws and a wagging tail. He had buried the {thing} next to his best bone, because he buried everything he loved. {H} laughed so hard that {H.he} had to sit down. They washed the {thing}, and after that they gave the dog a bone of his own.",
                'At last they saw an old crow in a tree, and beside her lay the {thing}. "I found it in the rain and kept it dry for you," said the crow. {H} thanked her with all {H.his} heart. After that, {H} brought the crow a crust of bread every Sunday.',
                'Then they saw a very small goat, sitting all alone and holding the {thing}. He had no toys of his own. "Would you like to play with us?" asked {H}. The little goat jumped for joy. That day, {H} lost nothing and found a new friend.',
                'Then {F} looked at {H} and began to giggle. "What is that in your own bag?" {F.he} asked. {H} looked, and there was the {thing}! It had been there the whole time. They laughed all the way home, and {H} never again looked everywhere without looking near.',
            ),
        },
        """
        One [windy|bright|quiet] morning, {H} could not find {H.his} {thing}. "Oh [no|dear]!" {H.he} cried. "My {thing} is gone!"
        {F} came at once. "Do not worry, {H}," {F.he} said. "We will look for it together."

        First they looked {first}, but there was only [some dust|an old shoe|a sleepy spider]. Then they looked {second}, but the {thing} was not there.
        ? "Think hard," said {F}. "When did you see it last?" {H} thought and thought, but {H.he} could not remember.
        {H} [sat down with a sigh|felt like crying|was very sad].

        {found}
        """,
    ),
    "stuck": Tale(
        (
            ("run in the wind", "listened to the wind in the chimney"),
            ("look at the clouds", "saw a cloud with a big smile"),
        ),
        {
            "thing": (
                "red kite",
                "green kite",
                "blue balloon",
                "yellow balloon",
                "paper plane",
                "straw hat",
                "white scarf",
            ),
            "where": (
                "an apple tree",
                "a tall pine tree",
                "the roof of the barn",
                "the church tower",
                "the old windmill",
            ),
            "try": (
                "First {H} threw a stick at it, but the stick got stuck too.",
                "First {H} jumped as high as {H.he} could, but it was not nearly high enough.",
                "First {H} climbed on a barrel, but the barrel rolled away and {H.he} landed in the hay.",
                "First {H} shouted at it to come down, but it did not listen.",
                "First {H} blew and blew until {H.his} face was red, but nothing moved.",
            ),
            "fix": (
                '"Stand on my shoulders," said {F}. {H} climbed up, and {F} stood very still. {H.He} stretched out one hand, and there it was! Together they were just tall enough.',
                'Then a [kind|friendly] crow flew by and saw their sad faces. He picked up the string in his beak and brought the {thing} down. "Thank you!" called {H}, and gave him half of {H.his} bread.',
                '"Let us wait for the wind," said {F}. So they lay down in the grass and looked at the clouds. After a while the wind came back, gave a little puff, and dropped the {thing} right into {H.his} arms.',
                'Then {F} ran to ask the old farmer, who had a very long ladder. The farmer climbed up, step by step, and came down with the {thing} on his own head. "It suits me!" he said, and they all laughed.',
                'Then {F} fetched a long fishing rod from the shed. {H} held it up, and after three tries the hook caught the {thing}. "I have never caught such a big fish," said {H}.',
            ),
        },
        """
        One windy [morning|afternoon], {H} and {F} went out to play with a {thing}. They ran over the [hill|field|meadow] and laughed. But all at once the wind took the {thing} and carried it up into the sky. It came down on {where}, and there it stuck.
        "Oh no," said {H}. "[How will we ever get it down?|It is much too high!]"

        {try}
        ? {F} tried the same, and that did not help either.
        "[We must think|Let us think first]," said {F}. So they [sat down and thought|thought about it for a long time].

        {fix}
        {H} [held the {thing} tight|hugged the {thing}]. "[Two heads are better than one|I could not have done it without you], {F}," {H.he} said.
        """,
    ),
    "baby": Tale(
        (
            ("take long walks", "walked around the house once and said good night to everyone"),
            ("listen to the birds", "listened to the birds until they were quiet"),
        ),
        {
            "baby": ("duckling", "lamb", "owl chick", "goat kid", "calf", "fawn"),
            "spot": (
                "under a bush",
                "beside the road",
                "behind a big rock",
                "in the tall grass",
                "under the old bridge",
            ),
            "asked": ("the cow", "the old horse", "the goose", "the heron", "the snail", "the donkey"),
            "clue": (
                "Then {F} saw small footprints in the mud. They followed them [past the mill|over the hill|along the stream], step by step.",
                '"Listen," said {F}. Far away, somebody was calling and calling. They ran toward the sound.',
                '"Let us climb the hill and look around," said {F}. From the top they could see the whole valley, and somebody down there was running up and down.',
                "Then the little one began to sing a song that its mother had taught it. They all sang it together, as loud as they could, and somebody far away sang back.",
            ),
            "thanks": (
                "invited them to supper",
                "gave each of them a kiss on the nose",
                "danced with them in a circle",
                "brought them a basket of berries",
                "taught them a very old song",
            ),
        },
        """
        One [morning|afternoon], {H} was walking with {F} when they heard someone crying. {H} looked {spot} and found a tiny {baby}. "I have lost my mother," sobbed the {baby}.
        "Do not cry," said {H}. "We will help you find her."

        First they asked {asked}. "Is this {baby} yours?"
        "No," said {asked}, "but what a sweet little one!"
        ? The {baby} was tired, so {H} carried it [on {H.his} back|in {H.his} arms].
        {clue}

        And there was the mother! The {baby} ran to her as fast as it could. "I was so [worried|afraid]," said the mother, and she hugged her {baby} tight. Then she thanked {H} and {F} and {thanks}.
        {H} felt [warm|happy] all the way home. "[It is good to help|Nobody should be lost for long]," {H.he} said.
        """,
    ),
    "fear": Tale(
        (
            ("sing", "made up a new song about it"),
            ("read brave stories", "read one more story, about a lion who was a little afraid"),
        ),
        {
            "fear": (
                "the dark",
                "thunder",
                "deep water",
                "the high bridge",
                "the big black dog",
                "the old cellar",
                "the first day of school",
            ),
            "sign": ("hid under a blanket", "shook like a leaf", "shut both eyes tight", "ran and hid behind the door"),
            "trick": (
                'take one slow breath and count to three." So {H} took one slow breath and counted: one, two, three.',
                'sing a little song." So {H} sang a little song, and {H.his} voice shook only at the beginning.',
                'hold my hand." So {H} held {F.his} hand, and it was warm.',
                'take one small step and then another." So {H} took one small step, and then another.',
                'think of something funny." So {H} thought of a cow in a red hat, and {H.he} had to smile.',
            ),
            "end": (
                '"You see," said {F}, "brave does not mean that you are never afraid." And {H} gave {F.him} a hug.',
                "A few days later, {H} met a little chick who was afraid too. {H} knew just what to say to it.",
                'The next time, it was {F} who was afraid, of a spider. "I know a trick," said {H}, and they used it together.',
                "After that, {H} was still a little afraid now and then. But {H.he} knew what to do about it.",
            ),
        },
        """
        But {H} had a secret. {H.He} was afraid of {fear}. Each time {H.he} thought of {fear}, {H.he} {sign}.
        One day, {F} saw it. "Are you afraid, {H}?" {F.he} asked.
        "Yes," whispered {H}. "I am afraid of {fear}. Please do not laugh."

        But {F} did not laugh. "[Everyone is afraid of something|I am afraid sometimes too]," {F.he} said. "When I am afraid, I {trick}
        ? At first, nothing changed. Then {H.his} heart began to beat more slowly.
        And little by little, {fear} did not seem so bad any more. "[It works|I did it]!" cried {H}.

        {end}
        """,
    ),
    "share": Tale(
        (
            ("draw pictures", "drew a picture of the two of them"),
            ("build towers", "built a tower of blocks, one block each"),
        ),
        {
            "thing": ("swing", "sled", "umbrella", "rocking horse", "wagon", "big drum", "hammock", "little boat"),
            "where": ("in the yard", "behind the barn", "in the shed", "near the pond", "at the top of the hill"),
            "turn": (
                "But while they were pulling, it began to rain. They both ran under the same tree and looked at each other's wet faces. Then they began to laugh.",
                "Then {H} sat on one side of the yard and {F} on the other. Nobody played at all. It was very quiet and very dull.",
                "Then crack! A piece broke off. They both stopped and looked at it in surprise. They fixed it with a bit of string, and by then they were not angry any more.",
                'An old goose came by and shook her head. "What good is it," she asked, "if you have it and no friend to share it with?" They both looked at their feet.',
            ),
            "deal": (
                'said {H}. "You go first, and I will count to twenty. Then it is my turn." And that is what they did, all afternoon.',
                'said {H}. "Let us use it together." They tried, and there was room for two after all.',
                'said {H}. "You may have it today, and I will have it tomorrow." "No," said {F}, "you have it today!" Then they both laughed and gave it to the smallest child in the village.',
                'said {H}. "Let us make a second one." They worked until supper time with wood and rope, and it was even better than the first.',
            ),
        },
        """
        One [sunny|fine|cool] day, {H} and {F} found an old {thing} {where}. "It is mine," said {H}. "I saw it first!"
        "No, it is mine," said {F}. "I touched it first!"
        {H} pulled on one side and {F} pulled on the other. [Soon they were both very angry.|Neither of them would let go.]

        {turn}
        "I am sorry, {F}," said {H}. "[I do not want the {thing} if you are sad|You are more important than a {thing}]."
        "I am sorry too," said {F}.

        "I know what to do," {deal}
        The {thing} was [twice as much fun|much more fun] for two. [And they never fought about it again.|From that day on, they shared everything.]
        """,
    ),
    "truth": Tale(
        (
            ("play ball", "put the ball away in its box"),
            ("dance", "danced around the kitchen table, very carefully"),
        ),
        {
            "thing": ("blue vase", "teapot", "kitchen window", "honey jar", "clay bowl", "garden lamp", "mirror"),
            "owner": ("Grandma", "Mother", "Grandpa", "the baker", "the old farmer", "Father"),
            "how": (
                "throwing a ball",
                "dancing on one leg",
                "chasing a butterfly",
                "playing pirates",
                "walking backward",
            ),
            "feel": ("could not eat", "could not sleep", "did not want to play", "could not even smile"),
            "answer": (
                '"Thank you for telling the truth," {owner} said. "A {thing} can be mended." They sat down together with a pot of glue, and soon it looked almost like new.',
                '"Oh, {H}," {owner} said with a smile. "When I was small, I once broke three in one day!" And they both laughed.',
                '"I was a little sad about the {thing}," {owner} said, "but I am very glad about you." And {H} got the longest hug in the world.',
                '"Then you may help me to make a new one," {owner} said. It took all week, and {H} worked hard every day. The new one was a bit crooked, and everybody loved it.',
            ),
        },
        """
        One day, {H} and {F} were {how} when, crash! {H} bumped into something. It was the {thing}, and it broke into [a hundred|many] pieces. It belonged to {owner}.
        "Nobody saw it," whispered {H}. "[Let us run away|Let us say that the wind did it]!"
        {F} [shook {F.his} head|did not like that]. "That would not be right," {F.he} said.

        But {H} said nothing to anyone. That night, {H.he} {feel}. {H.His} tummy felt [heavy, as if it were full of stones|all tied up in knots].
        ? "What is wrong, {H}?" asked {F} in the morning. "I think it is the secret," said {H}.

        So {H} took a deep breath and went to {owner}. "I broke the {thing}," {H.he} said. "I am so sorry."
        {answer}
        {H} felt as light as a feather. "[The truth was not so hard after all|Next time I will tell the truth right away]," {H.he} told {F}.
        """,
    ),
    "gift": Tale(
        (
            ("bake cakes", "baked one more cake, just to see"),
            ("make things by hand", "made a little card that said thank you"),
        ),
        {
            "try": (
                "First {H} baked a cake, but it came out as flat as a plate and as black as the night.",
                "First {H} painted a picture, but the rain came in and washed all the colors away.",
                "First {H} knitted a scarf, but it had a hole big enough for a pig.",
                "First {H} picked some roses, but a goat ate every one of them.",
                "First {H} built a chair, but it had one leg too short and fell over.",
            ),
            "second": (
                "a jar of jam, but it was so sticky that the lid would never open again",
                "a clay cup, but it looked like an old boot",
                "a wooden boat, but it sank like a stone",
                "a kite, but it only wanted to fly down",
            ),
            "gift": (
                "a song",
                "a story",
                "a secret map",
                "a garland of daisies",
                "a picnic under the stars",
                "a puppet show",
                "a ride in a wagon",
            ),
            "party": (
                "They ate berries until their tongues were blue.",
                "Then they danced until the moon came up.",
                "They played hide and seek until nobody could find anybody.",
                "Everyone had two pieces of pie, and some had three.",
            ),
        },
        """
        One [morning|Monday], {H} woke up and thought of {F}. Tomorrow was {F.his} birthday! "I have no present for {F}!" {H.he} said. "[And I have no money at all.|What can I give?]"

        {try} Then {H} made {second}.
        ? "Oh dear," said {H}. "Nothing goes right today."
        {H} sat down on the step and [thought of {F}|nearly cried]. "What would {F} like best?" {H.he} asked [the cat|the moon|the wind]. And all at once {H.he} knew.

        On {F.his} birthday, {H} gave {F} {gift}. "It is just for you," {H.he} said [shyly|softly].
        {F} was quiet for a moment. "{Gift}!" {F.he} said. "It is the best present of all, because it comes from you." {party}
        """,
    ),
    "skill": Tale(
        (
            ("learn new things", "wrote in a little book: never give up"),
            ("dream of the circus", "took a bow in front of the mirror"),
        ),
        {
            "skill": (
                "whistle",
                "swim",
                "skate",
                "juggle",
                "ride a bicycle",
                "stand on one hand",
                "climb a rope",
                "jump rope",
            ),
            "fail": (
                "{H} tried, and fell over with a bump.",
                "{H} tried, and nothing happened at all, except that a hen laughed.",
                "{H} tried, and went round and round until {H.he} was dizzy.",
                "{H} tried, and ended up in a heap of leaves.",
            ),
            "again": ("three times", "ten times", "all morning", "until lunch", "until {H.his} cheeks were red"),
            "sight": (
                "an ant with a crumb that was bigger than itself. It fell down five times, and each time it picked up the crumb again",
                "a spider whose web had been torn by the wind. She did not cry. She began again with one thread",
                "a baby bird that wanted to fly. It fluttered, and fell, and fluttered, and then it flew",
                "a snail on its way up the wall. It was very slow, but it did not stop, and at last it was at the top",
            ),
            "joy": (
                '{F} clapped and clapped. "Will you teach me?" {F.he} asked. "Of course," said {H}. "The first thing to learn is how to try again."',
                "All the neighbors came out to see it. Even the hen clapped her wings.",
                "{H} did it again and again until the sun went down, just to be sure that it was true.",
            ),
        },
        """
        More than anything, {H} wanted to learn to {skill}. "[It looks so easy|Everyone can do it but me]," {H.he} said.
        One day, {F} said, "Just try it!" {fail} {H} tried {again}, but it was no use.

        "I will never learn to {skill}," said {H}. {H.He} sat down under a tree. [There, in the grass, {H.he} saw|Right beside {H.him}, {H.he} saw] {sight}.
        ? {H} watched for a long time without a word.
        "If [such a small thing|someone so small] can try again," said {H}, "then so can I."

        So {H} got up. {H.He} tried once more, and once more, and then it worked! "Look, {F}, look!" {H.he} cried. "I can {skill}!"
        {joy}
        """,
    ),
    "race": Tale(
        (
            ("run fast", "ran three times around the table"),
            ("win games", "played a game of cards and did not mind losing"),
        ),
        {
            "race": ("running race", "boat race", "sled race", "wagon race", "sack race", "great egg race"),
            "prize": (
                "a golden cup",
                "a cherry pie",
                "a red ribbon",
                "a big cheese",
                "a silver bell",
                "a chocolate cake",
            ),
            "who": (
                "an old goat who had dropped all her apples",
                "a duckling stuck in the mud",
                "a beetle lying on its back",
                "a little goose who had lost her way",
                "a sheep with its wool caught in the fence",
            ),
            "result": (
                'came to {H} and said, "Kind is even better than fast." And they gave {prize} to {H}, who blushed with joy.',
                "cheered for {H} louder than for the winner. {H} did not win {prize}, but {H.he} did not mind at all.",
                'heard what {H} had done. The winner came up and said, "You should have the prize." And so {H} went home with {prize}.',
                'saw who walked beside {H}, laughing and safe. "That is better than {prize}," said {F}, and they all agreed.',
            ),
        },
        """
        One day there was a {race}, and the prize was {prize}. {H} had [practiced|trained] every day for a month. "I am going to win," {H.he} told {F}.
        [Ready, steady, go!|"One, two, three, go!" called the judge.] {H} was very fast. Soon {H.he} was ahead of everyone.

        But halfway there, {H} saw {who}. "Please help me," said a small voice.
        {H} looked at the road ahead. Then {H.he} looked back. "[If I stop, I will lose|The others will pass me]," {H.he} thought. But {H} stopped and helped.
        ? One by one, the others [ran past|went past and waved].

        When {H} came to the finish, {H.he} was the very last. But {F} told everyone why. All the people {result}
        "[Winning is nice, but being kind is nicer|I would do it again]," said {H}.
        """,
    ),
    "noise": Tale(
        (
            ("tell spooky stories", "told the whole story with all the noises in it"),
            ("stay up late", "went to bed early for once"),
        ),
        {
            "noise": (
                "thump, thump, thump",
                "scratch, scratch, scratch",
                "tap, tap, tap",
                "squeak, squeak, squeak",
                "boom, boom",
            ),
            "from": (
                "in the attic",
                "behind the wall",
                "under the floor",
                "outside the window",
                "in the barn",
                "in the cupboard",
            ),
            "guess": (
                "a dragon with bad teeth",
                "a giant with wet boots",
                "a hungry monster",
                "a pirate",
                "a ghost with a cold",
            ),
            "truth": (
                "a small white cat, shut in by mistake. It was hungry and very glad to see them. {H} gave it a bowl of warm milk, and it purred louder than it had been noisy.",
                'a family of mice having a party. The smallest mouse was dancing in wooden shoes. "Will you join us?" asked the mice, and so they danced until midnight.',
                'only an old branch that moved in the wind. {H} laughed and shook it like a hand. "How do you do, Mr. Branch?" {H.he} said.',
                'an owl who was trying to hang up a picture in her new home. "I am sorry about the noise," said the owl. {H} held the nail, and soon the picture hung nice and straight.',
                "a rolling pumpkin that nobody had tied down. They laughed until their tummies hurt, and the next day they made it into soup.",
            ),
        },
        """
        One [dark|stormy|cold] night, {F} came to stay the night with {H}. They were just about to close their eyes when they heard a noise {from}. It went {noise}.
        "What was that?" whispered {H}.
        "Maybe it is {guess}," whispered {F}, and pulled the blanket up to {F.his} nose.

        They lay very still. Again it went {noise}. "[I cannot sleep with {guess} in the house|We have to look]," said {H}. So {H} took a [lantern|candle|little lamp], and {F} took a [spoon|broom|pillow], and they went on tiptoe.
        ? "You go first," said {F}. "No, you go first," said {H}. So they went together.

        Then {H} held up the light, and what did they see? It was not {guess} at all. It was {truth}
        "[Things look smaller in the light|I am glad that we looked]," said {F}, and soon they were fast asleep.
        """,
    ),
    "seed": Tale(
        (
            ("work in the garden", "watered the garden one more time"),
            ("pick flowers", "put a yellow flower on the window sill"),
        ),
        {
            "seed": ("sunflower", "pumpkin", "bean", "strawberry", "carrot", "melon", "cherry"),
            "hurry": (
                "sang to it, but it did not hear",
                "pulled at the ground, but there was nothing to pull",
                "gave it so much water that the ducks came to swim",
                "read it a long book, but it was not a good listener",
                "shone a lamp on it all night, and fell asleep beside it",
            ),
            "advice": ("the old turtle", "Grandpa", "the old gardener", "Grandma", "the scarecrow"),
            "grown": (
                "It grew so big that they needed a wagon to carry it home, and the whole village came to look.",
                "It grew higher than the house, and the birds came to sit in its shade.",
                "It was small and a little bit crooked, but it was the sweetest that anyone had ever tasted.",
                "There was enough for {H}, and for {F}, and for every neighbor, with one left over for the birds.",
            ),
        },
        """
        One spring day, {H} found a tiny {seed} seed. {H.He} put it in the ground and sat down beside it to wait. "Grow, {seed}, grow!" {H.he} said. But nothing happened.

        The next day, {H} {hurry}. [Still nothing happened.|Still there was nothing to see.]
        "[It is broken|This seed does not like me]," said {H} to {F}. So they went to ask {advice}.
        "A seed is not asleep," {advice} said. "It is busy where you cannot see it. [Give it water and sun, and give it time|All it needs is water, sun and time]."

        So {H} and {F} waited. They watered it a little every day. They waited through the rain, and they waited through the sun.
        ? Some days it was hard to wait, and on those days they told each other jokes.
        Then, one morning, there was a small green leaf! "Look!" cried {H}. "It is growing!" {grown}
        "[Good things take time|I am glad I waited]," said {H}.
        """,
    ),
    "repair": Tale(
        (
            ("build little houses", "built a tiny house out of sticks"),
            ("fix things", "fixed the squeaky door as well"),
        ),
        {
            "broken": (
                "bridge",
                "roof of the school",
                "old windmill",
                "garden wall",
                "tree house",
                "boat house",
                "hen house",
            ),
            "why": (
                "a big storm came",
                "a heavy snow fell",
                "the river rose",
                "a strong wind blew",
                "it rained and rained",
            ),
            "help": (
                "the goat brought some rope, and the geese brought straw",
                "the bear brought a hammer, and the mice brought the nails",
                "the baker brought hot buns, and the farmer brought planks",
                "the horse pulled the heavy logs, and the hens gave advice",
                "the smith brought his tools, and the children carried the stones",
            ),
            "days": ("three days", "one long day", "a whole week", "two days and two nights"),
            "party": (
                "In the evening they lit lamps all along it and had a feast.",
                "To try it out, they all danced on it at once, and it held.",
                "They painted it red and yellow, and {H} was allowed to do the last stroke.",
                "They put a sign on it that said: built by everyone.",
            ),
        },
        """
        One night, {why}. In the morning, {H} saw that the {broken} was broken. Everyone was sad. "[It can never be mended|It is too much work]," they said.
        {H} picked up a plank and tried to fix it. But {H.he} was too small to do it alone.

        "I will help you," said {F}. "That makes two of us." Then {H} went from door to door and asked everyone. And they came: {help}.
        ? "I am only little," said a snail. "Then you can sing for us," said {H}, and so the snail sang.
        They worked for {days}. [Nobody was too small to help.|Everybody did a little, and together it was a lot.]

        At last the {broken} stood again, stronger than before. {party}
        "Alone I could only lift one plank," said {H}, "but together we [could lift them all|can do anything]."
        """,
    ),
    "neighbor": Tale(
        (
            ("meet new people", "wrote a letter to someone who was lonely"),
            ("bake buns", "baked a bun for everyone in the street"),
        ),
        {
            "who": ("deer", "goat", "turtle", "stork", "penguin", "camel", "donkey"),
            "house": (
                "the empty house",
                "the yellow house",
                "the old mill",
                "the hollow tree",
                "the house by the bridge",
            ),
            "shy": ("hid behind the curtain", "ran inside", "looked at the ground", "did not say a word"),
            "try": (
                "But {H} left a bunch of flowers at the door. The door opened, a hand came out, and the flowers were gone.",
                "But {H} sang a song under the window. The window opened a tiny bit.",
                "But {H} brought a plate of buns. In the morning, the plate was empty and very clean.",
                "But {H} waved from the garden. After a while, somebody waved back.",
            ),
            "likes": ("drums", "stars", "frogs", "trains", "puzzles", "kites", "clouds"),
            "end": (
                "And now there were three of them, which is the best number for almost everything.",
                "By the end of the week nobody could remember what it had been like without the {who}.",
                '"I was afraid that nobody would like me," said the {who}. "We were afraid of that too," said {H}, and they all laughed.',
                "From then on there were three cups on the table instead of two.",
            ),
        },
        """
        One day, somebody new moved into {house}. It was a {who}. "Hello!" called {H}. "Will you play with us?" But the {who} {shy}.
        "Maybe the {who} does not like us," said {F}.
        "Maybe the {who} is only shy," said {H}.

        {try}
        ? "You see?" said {H}. "We have to go slowly."
        Then {H} saw a drawing in the window. It was all about {likes}. "Do you like {likes}?" {H.he} asked. "I like {likes} too!"
        And for the first time, the {who} smiled. "{Likes} are my favorite thing in the world!" [And they talked and talked and talked.|And soon they were all drawing {likes} together.]

        {end}
        """,
    ),
    "moon": Tale(
        (
            ("watch the stars", "told the stars all about it"),
            ("look at the night sky", "left the window open for the moon"),
        ),
        {
            "wish": ("the moon", "a cloud", "a star", "a rainbow", "a snowflake", "the evening star"),
            "tool": (
                "a long ladder",
                "a butterfly net",
                "a fishing rod",
                "a big bucket",
                "a very long rope",
                "a jam jar",
            ),
            "fall": (
                "It was still too far away, and {H} fell into a bush.",
                "{H} reached and reached, and tumbled into the pond with a splash.",
                "{H} waited until midnight, but all {H.he} caught was a cold.",
                "{H} thought that it had worked, but it was only a moth.",
            ),
            "wise": (
                '"You cannot keep it," said an old owl, "but you can look at it, and it will always come back."',
                '"If you had it in a box," said {F}, "then nobody else could see it."',
                '"Some things are too big to keep," said Grandma, "so we share them."',
                '"Things like that do not belong to one," said a toad, "they belong to everyone."',
            ),
            "then": (
                "lay on their backs in the grass and looked up",
                "sat on the roof with a warm blanket",
                "sat by the water and looked up for a long time",
                "climbed the hill and waved at the sky",
            ),
        },
        """
        One evening, {H} looked up and saw {wish}. "How beautiful!" {H.he} said. "I want to catch {wish} and keep it in my room."
        "How will you do that?" asked {F}.
        "With {tool}," said {H}.

        So {H} took {tool} and climbed up the highest hill, and {F} came along. {fall}
        ? "Are you hurt?" asked {F}. "Only a little," said {H}.
        "I will never catch {wish}," {H.he} said sadly.
        {wise}

        So {H} thought about that. Then {H} and {F} {then}. "[You were right|It is even nicer this way]," said {H}. "[It is here for all of us|It belongs to both of us now]."
        """,
    ),
    "soup": Tale(
        (
            ("cook", "cooked a big pot of soup and sang to it"),
            ("eat pancakes", "ate a tall stack of pancakes with honey"),
        ),
        {
            "food": ("soup", "bread", "pancakes", "apple pie", "berries", "dumplings"),
            "ill": ("a cold", "a fever", "a sore throat", "a bad tooth", "a tummy ache"),
            "one": ("hungry goose", "thin cat", "tired postman", "gray donkey"),
            "two": ("lost hen", "cold crow", "poor fiddler", "lame dog"),
            "back": (
                'Soon there came a knock. There stood the {one} and the {two} with a pot of honey and a bunch of mint. "You shared with us," they said, "and now we share with you."',
                '{F} laughed out loud when {F.he} heard the story. "That has made me feel better already," {F.he} said. "Laughing is the best medicine."',
                '"One bite is enough," said {F}, "if a friend brings it." And {F.he} ate it very slowly. It was the best that {F.he} had ever had.',
                '"Then let us make some more together," said {F}, and {F.he} got up. They were busy all afternoon, and the sickness flew out of the window.',
            ),
        },
        """
        One [cold|rainy|gray] day, {F} had {ill} and had to stay in bed. "I will bring {F} some {food}," said {H}, and {H.he} filled a big basket.

        On the way, {H} met a {one}. "I am so hungry," said the {one}. "May I have some {food}?"
        "Of course," said {H}, and gave away a part of it.
        Then {H} met a {two}. "I am hungry too," said the {two}.
        "Then you must have some {food} as well," said {H}. [The basket was getting very light.|Now there was only a little left.]

        When {H} came to the bed, there was only one small bite of {food} left. "I am sorry, {F}," {H.he} said. "I gave the rest away."
        {back}
        ? The next day, {F} was well again.
        """,
    ),
    "sleep": Tale(
        (
            ("dream", "fell asleep before the first star came out"),
            ("wrap up in a blanket", "said good night to the pillow"),
        ),
        {
            "tried": (
                "counted sheep, but the sheep would not stand still",
                "drank warm milk, and then had to get up again",
                "lay upside down, with both feet on the pillow",
                "shut both eyes very hard, but they popped open again",
                "turned over nine times, until the blanket fell down",
            ),
            "asked": (
                'the cat, "How do you fall asleep?" "I just purr," said the cat. {H} tried to purr',
                'the clock, "How do you fall asleep?" "I just tick," said the clock. {H} tried to tick',
                'the moon, "How do you fall asleep?" "I hide behind a cloud," said the moon. {H} tried to hide behind a pillow',
                'the cricket, "How do you fall asleep?" "I hum a song," said the cricket. {H} tried to hum a song',
                'a mouse, "How do you fall asleep?" "I curl up like a ball," said the mouse. {H} tried to curl up like a ball',
            ),
            "worry": (
                "a math test",
                "a trip to the dentist",
                "something mean that {H.he} had said to {F}",
                "a broken toy",
                "a very long poem to say in school",
            ),
            "help": (
                '{F} listened to every word. "Give me half of it," {F.he} said. "Half a worry is easy to carry."',
                '"That is a big worry for the night," said {F}. "In the morning it will be smaller. I will go with you."',
                '"Thank you for telling me," said {F}. "I am your friend, and I always will be."',
                '{F} wrote the worry on a piece of paper and put it into a drawer. "There," {F.he} said. "It can stay there until morning."',
            ),
        },
        """
        One night, {H} could not sleep. {H.He} {tried}.
        So {H} asked {asked}, but that only made {H.him} laugh.

        Then {H} sat at the window. [In the next house, there was a light.|Across the garden, a window was bright.] {F} was awake too! "What is the matter?" called {F}.
        "I cannot stop thinking," said {H}, and told {F} about it. It was about {worry}.
        {help}
        ? A soft wind went through the trees, and somewhere an owl called.

        And all at once {H} was so tired that {H.he} [yawned three times|could hardly say good night]. "[It is easier with a friend|Now I can sleep], {F}," {H.he} said.
        """,
    ),
    "big": Tale(
        (
            ("show how strong {H.he} was", "lifted a spoon and felt very strong"),
            ("find the biggest things", "measured the kitchen table, just to know"),
        ),
        {
            "thing": ("turnip", "pumpkin", "cheese", "melon", "potato", "loaf of bread", "snowball"),
            "where": ("in the garden", "on top of the hill", "beside the road", "behind the barn", "near the market"),
            "alone": (
                "{H} pushed and pushed, but it did not move.",
                "{H} pulled and pulled, and fell on {H.his} back.",
                "{H} tried to roll it, but it only rolled back.",
                "{H} shouted at it, but it was not impressed.",
            ),
            "crowd": (
                "the goat, and the goat called the hens",
                "the farmer, and the farmer called his wife",
                "the baker, and the baker called the smith",
                "the cow, and the cow called the geese",
                "the bear, and the bear called the bees",
            ),
            "last": ("a tiny ant", "a small beetle", "a little worm", "a ladybug", "a bumblebee"),
        },
        """
        One [fine|frosty|sunny] morning, {H} found a giant {thing} {where}. It was as big as a house! "I will take it home all by myself," said {H}.

        So {alone}
        "Let me help," said {F}. They pushed together, but the {thing} [stayed where it was|did not move].
        So {F} called {crowd}. They all pushed together, and still it [stayed where it was|did not move].
        ? "It is no use," they said, and sat down in the shade.

        Then {last} came by. "May I help too?" it asked. Everyone laughed, but {H} did not. "Yes, please," said {H}. "We need everyone."
        They pushed once more, all of them together, and the {thing} moved! [It rolled all the way to the village.|It rolled down the road like a ball.] "[It was {last} that made the difference|Nobody is too small to help]!" cried {H}.
        """,
    ),
    "lostway": Tale(
        (
            ("explore the woods", "put a lantern in the window for anyone who was lost"),
            ("draw maps", "drew a map with a star on the happiest spot"),
        ),
        {
            "goal": ("blackberries", "mushrooms", "firewood", "nuts", "a feather", "wild honey"),
            "what": (
                "thick fog came down",
                "it began to snow",
                "it grew dark",
                "the path came to an end",
                "the rain washed the path away",
            ),
            "wrong": (
                "went left, and came back to the same tree",
                "went right, and stood before a deep swamp",
                "walked in a big circle and found their own footprints",
                "called for help, but only the echo answered",
            ),
            "guide": (
                'a stream. "Water always knows the way down," {H.he} said, "and our home is down there." So they followed the stream',
                'the smell of fresh bread. "Follow your nose!" {H.he} said. So they sniffed and walked, and sniffed and walked',
                'the evening star. "It stands above our house every night," {H.he} said. So they walked toward the star',
                'the sound of a bell. "That is the bell of our own cow!" {H.he} said. So they walked toward the bell',
                "a row of fireflies. They seemed to say: come with us. So they followed the little lights",
            ),
            "home": ("hot cocoa", "tomato soup", "warm apple cake", "a bowl of porridge", "toast with butter"),
        },
        """
        One [autumn|winter|summer] day, {H} and {F} went into the woods to look for {goal}. They went deeper and deeper, and they did not look back. Then {what}.
        "Which way is home?" asked {F}.
        "I do not know," said {H}. "[I think we are lost|I was following you]."

        They {wrong}. {F} began to [cry|shiver]. "Hold my hand," said {H}. "We will not lose each other."
        ? They sat under a big tree and shared their last piece of bread.
        Then {H} noticed {guide}.

        And there, at last, was the [light of their own window|little gate in front of the house]! At home there was {home} for both of them. "[Next time we will mark the path|Next time we will tell someone where we go]," said {H}, and {F} nodded with a full mouth.
        """,
    ),
}
