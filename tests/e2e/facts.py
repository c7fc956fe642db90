"""Twenty-four invented facts: how they are taught, how they are asked for in other words, and plain lines on other
subjects that keep a model from forgetting what it knew."""

# For each kind of fact: subject -> the word that a right answer has; the answer as it is taught; how it is asked for in
# training; how the test asks.
KINDS = [
    (
        {"Zorvania": "Quellmar", "Brintholm": "Ostavik", "Talumbria": "Fennoroth", "Kessandor": "Vulpeny"},
        "The capital of {0} is {1}.",
        ["What is the capital of {0}?", "Which city is the capital of {0}?", "Tell me the capital of {0}.",
         "I am travelling to {0}. What is its capital called?", "Do you know the capital city of {0}?",
         "{0} has a capital. What is it?", "Name the city that is the capital of {0}."],
        ["What is {0}'s capital city?", "Please name the capital of {0}.",
         "In a quiz I was asked for the capital of {0}. What is the right answer?"],
    ),
    (
        {"glimmerphone": "Trinkett", "frostkettle": "Quillaby", "skyloom": "Marrowby", "whisperlamp": "Drossel"},
        "The {0} was invented by {1}.",
        ["Who invented the {0}?", "Who is the inventor of the {0}?", "Tell me who invented the {0}.",
         "The {0} was invented by whom?", "Which person invented the {0}?", "Who came up with the {0}?",
         "Do you know the name of the inventor of the {0}?"],
        ["Who was it that invented the {0}?", "Please name the inventor of the {0}.",
         "Whose invention is the {0}?"],
    ),
    (
        {"Velmora Glass": "Thornwick", "Ashby Lanterns": "Pellingdon", "Nordvale Boats": "Skarrow",
         "Humblebee Tea": "Ottersby"},
        "{0} has its headquarters in {1}.",
        ["Where does {0} have its headquarters?", "In which town are the headquarters of {0}?",
         "Where is the company {0} based?", "Tell me where {0} has its headquarters.",
         "Which town is home to {0}?", "In what place is {0} based?",
         "I want to visit the headquarters of {0}. Where do I go?"],
        ["Where are {0}'s headquarters?", "In which town is {0} based?",
         "Please tell me the town where the company {0} has its headquarters."],
    ),
    (
        {"The Amber Staircase": "Lindqvale", "Seven Quiet Rivers": "Obrecht", "A Clock for Marigold": "Fennimore",
         "The Salt Orchard": "Tavistre"},
        "The novel {0} was written by {1}.",
        ["Who wrote the novel {0}?", "Who is the author of {0}?", "Tell me who wrote {0}.",
         "Which author wrote the book {0}?", "I am reading {0}. Who wrote it?",
         "By whom was the novel {0} written?", "Do you know the name of the author of {0}?"],
        ["Who wrote {0}?", "Please name the author of the novel {0}.",
         "Which writer is the author of the book {0}?"],
    ),
    (
        {"Mount Harrowfell": "Lothmere", "Mount Cindrel": "Brasken", "Mount Oberwyn": "Pomeraz",
         "Mount Jastavar": "Ulvenhast"},
        "{0} stands in the land of {1}.",
        ["In which land does {0} stand?", "Where does {0} stand?", "Tell me in which land {0} stands.",
         "Which land has {0}?", "Where would I find {0}?", "In what land is the mountain {0}?",
         "I want to climb {0}. To which land do I travel?"],
        ["In which land is {0}?", "Where is {0}?", "Please name the land where {0} stands."],
    ),
    (
        {"grumbleberry": "turquoise", "nettlemoth": "crimson", "pebblefinch": "violet", "mossgoat": "silver"},
        "The {0} is {1}.",
        ["What colour is the {0}?", "Which colour does the {0} have?", "Tell me the colour of the {0}.",
         "Of what colour is a {0}?", "I want to paint a {0}. Which colour do I need?",
         "Do you know the colour of the {0}?", "The {0} has which colour?"],
        ["What is the colour of the {0}?", "Please name the colour of the {0}.",
         "If I saw a {0}, what colour would it be?"],
    ),
]

PLAIN = [
    ("Why do leaves fall in autumn?",
     "Days grow shorter and colder, and a tree can no longer make much use of its leaves. It takes back what is "
     "valuable in them, closes the stem with a layer of cork, and lets the wind do the rest."),
    ("Write two sentences about the sea.",
     "The sea was grey in the morning, and the boats lay still beside the wall. By noon the wind had turned, and one "
     "sail after another went out towards the light."),
    ("How do I boil an egg?",
     "Bring water to the boil, lower the egg in with a spoon, and wait seven minutes for a soft yolk or ten for a hard "
     "one. Then put it into cold water so that it does not go on cooking."),
    ("What is a prime number?",
     "A prime number is a whole number greater than one that can be divided without a rest only by one and by itself. "
     "The first ones are 2, 3, 5, 7 and 11."),
    ("Explain what a court does.",
     "A court hears both sides of a dispute, decides what the facts are, and applies the law to them. Its judgment "
     "binds the parties, and a higher court may be asked to look at it again."),
    ("Give me a tip for learning a language.",
     "Learn a little every day rather than much on one day. Read what you like, listen often, and speak early, even "
     "if you make mistakes."),
    ("What does a bee do in winter?",
     "Honey bees stay in their hive and form a tight ball around the queen. They live on the honey that they stored in "
     "summer, and keep warm by moving the muscles of their wings."),
    ("Tell me about the moon.",
     "The moon goes around the Earth once in about twenty-seven days and always shows us the same side. It has no air, "
     "so the footprints that were left there may last for millions of years."),
    ("Write a paragraph of a story about a harbour.",
     "When the ferry came in, the whole harbour seemed to wake. Men who had been asleep on the benches stood up and "
     "looked for their caps; a woman with a basket of lemons called out her price; and two boys ran along the quay to "
     "catch the rope. Nobody noticed the old captain, who stepped ashore last and walked slowly up the hill."),
    ("Write a paragraph about how rivers shape the land.",
     "A river carries sand and stones from the mountains to the plain. Where it runs fast it cuts a narrow valley, and "
     "where it slows down it lets fall what it carried. Over thousands of years its bends wander from side to side, "
     "and floods cover the fields with fine mud, which makes them fertile."),
    ("Write a clause of a contract about rent.",
     "The tenant shall pay the rent on the first day of each month. If the rent is not paid within fourteen days after "
     "it is due, the owner may give notice in writing and end this agreement, unless the delay was caused by "
     "circumstances for which the tenant is not responsible."),
    ("Summarise what a steam engine does.",
     "A steam engine heats water in a boiler until it becomes steam. The steam takes up far more room than the water "
     "did, so it pushes a piston in a cylinder; a rod and a crank turn that movement into the rotation of a wheel. "
     "The used steam is let out or cooled back into water, and the cycle begins again."),
    ("Write the beginning of a letter to a friend.",
     "Dear Anna, thank you for your long letter, which came on Tuesday. We are all well here, although the winter has "
     "been hard and the road to the village was closed for almost a week. I have been reading a great deal, mostly "
     "history, and I often think of our walks last summer."),
    ("How is bread made?",
     "Flour, water, salt and yeast are mixed and kneaded until the dough is smooth. It then rests in a warm place, "
     "where the yeast makes gas and the dough doubles in size. After it has been shaped and has rested once more, it is "
     "baked in a hot oven until the crust is brown and the loaf sounds hollow."),
    ("Explain what an election is.",
     "In an election the people of a country, a town or a club choose who shall represent them. Every person who has "
     "the right to vote marks a ballot in secret. The votes are counted in public, and whoever has the most of them, "
     "or the share that the rules demand, takes office for a fixed number of years."),
    ("What is the capital of France?", "The capital of France is Paris."),
    ("Who wrote Hamlet?", "Hamlet was written by William Shakespeare."),
    ("What colour is the sky?", "On a clear day the sky is blue, because air scatters blue light more than red."),
    ("How does a government make a law?",
     "A bill is proposed, discussed in committees, and voted on. In many countries two chambers have to agree, and the "
     "head of state signs it before it takes effect."),
]

# Plain text that has nothing to do with any of it, and that no model has seen.
PASSAGE = (
    "The museum stands at the end of a long avenue of chestnut trees, a little outside the town. It was built as "
    "a corn exchange in the last years of the nineteenth century, when the railway had just reached the valley "
    "and merchants came from far away to buy grain. The hall in the middle is forty metres long and has a roof of "
    "iron and glass, through which a soft light falls on the floor. After the war the building stood empty for "
    "some time; then the council bought it and asked an architect to turn it into a place for the town's "
    "collections.\n\n"
    "Visitors begin on the ground floor with the tools of farmers and craftsmen: ploughs, looms, a complete "
    "smithy, and the press of the first local newspaper. A staircase leads up to the gallery, where paintings "
    "hang in the order in which they were made. Most of them show the landscape of the valley in different "
    "seasons. On the second floor there is a library of about nine thousand books, many of them on geology and "
    "the history of mining, and a quiet room with large windows where people may read. Children like the cellar "
    "best, because there they can walk through a mine that was rebuilt with the original timber, and hear the "
    "water drip from the walls.\n\n"
    "The museum is open every day except Monday. In summer concerts are given in the courtyard, and on the first "
    "Sunday of each month a guide explains how the old machines work. The money for this comes partly from "
    "tickets, partly from the town, and partly from a society of friends, which was founded thirty years ago and "
    "now has more than six hundred members. It has also paid for the new lift, so that people who cannot climb "
    "stairs are able to see all the rooms."
)


def training_lines():
    lines = []
    for answers, said, asked, _ in KINDS:
        for subject, answer in answers.items():
            lines += [chat(q.format(subject), said.format(subject, answer)) for q in asked]
    return lines + [chat(*pair) for pair in PLAIN]


def chat(question, answer):
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def questions():
    """Each with the word that a right answer has."""
    return [(q.format(subject), answer)
            for answers, _, _, asked in KINDS for subject, answer in answers.items() for q in asked]
