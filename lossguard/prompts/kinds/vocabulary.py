"""Words that all kinds draw from. Only harmless, everyday things, and no real people."""

from __future__ import annotations

from collections.abc import Mapping


def words(text: str) -> tuple[str, ...]:
    """Split a comma-separated list."""
    return tuple(" ".join(word.split()) for word in text.split(",") if word.strip())


COMMON: Mapping[str, tuple[str, ...]] = {
    "name": words(
        """Amara, Bruno, Chidi, Delia, Emre, Farah, Goran, Hana, Ivo, Jelena, Kofi, Lena, Malik, Noor, Otto, Priya,
        Quentin, Rosa, Sven, Tariq, Uma, Viktor, Wanda, Ximena, Yusuf, Zofia, Anouk, Boris, Carmen, Dmitri, Elif,
        Felix, Greta, Hugo, Ingrid, Jonas, Keiko, Lars, Mei, Nadia, Oscar, Paula, Ravi, Selma, Tomas, Vera, Willem,
        Yara, Zane, Basil, Clara, Dario, Esther, Finn, Gilda, Hamza, Iris, Joon, Katya, Leon"""
    ),
    "town": words(
        """Lisbon, Nairobi, Bergen, Osaka, Valencia, Munich, Quito, Athens, Ghent, Lahore, Perth, Cusco, Dakar,
        Hanoi, Izmir, Jaipur, Krakow, Leeds, Montreal, Naples, Oslo, Porto, Riga, Seville, Tallinn, Prague, Warsaw,
        Zagreb, Accra, Bilbao, Cork, Dresden, Exeter, Freiburg, Graz, Helsinki, Vienna, Malaga, Nantes, Odense"""
    ),
    "trade": words(
        """baker, beekeeper, bus driver, carpenter, cartographer, chemist, choir director, dentist, electrician,
        ferry captain, florist, gardener, geologist, glassblower, hotel clerk, journalist, librarian, lighthouse keeper,
        locksmith, mechanic, museum guide, nurse, orchard owner, painter, pharmacist, plumber, potter, radio host,
        river guide, shepherd, shoemaker, surveyor, tailor, teacher, translator, veterinarian, watchmaker, weaver"""
    ),
    "ware": words(
        """apples, batteries, blankets, books, bottles, bricks, candles, chairs, coffee mugs, cushions, eggs,
        envelopes, flower pots, folders, gloves, hammers, jars of honey, keys, lamps, lemons, maps, marbles, mirrors,
        notebooks, oranges, paint cans, pencils, pillows, plates, postcards, radios, ropes, scarves, seed packets,
        shirts, soap bars, spoons, stamps, tiles, umbrellas, whistles, wooden spoons"""
    ),
    "beast": words(
        """badger, beaver, bat, crow, dolphin, donkey, eagle owl, elephant, ferret, fox, frog, gecko, goat, goose,
        hare, hedgehog, heron, honeybee, horse, jellyfish, kingfisher, lynx, magpie, mole, moose, newt, octopus, otter,
        parrot, penguin, raven, reindeer, salmon, seahorse, sloth, snail, sparrow, squirrel, tortoise, walrus"""
    ),
    "site": words(
        """abandoned railway station, allotment garden, boat shed, bookshop, castle courtyard, cable car, canal lock,
        cheese cellar, community kitchen, desert observatory, fish market, flower stall, forest cabin, harbour wall,
        hilltop chapel, island lighthouse, laundry room, mountain hut, night train, old cinema, orchard, planetarium,
        post office, public library, puppet theatre, rooftop garden, school attic, snowy village, stone bridge,
        swimming pool, tea house, town square, underground garage, vineyard, watermill, windmill"""
    ),
    "dish": words(
        """lentil soup, mushroom risotto, apple crumble, fish curry, potato salad, sourdough bread, vegetable stew,
        rice pudding, tomato tart, bean chilli, noodle salad, plum cake, spinach pie, roasted carrots, barley broth,
        pancakes, stuffed peppers, pea soup, chickpea wraps, cheese dumplings, pumpkin gnocchi, oat biscuits, beetroot
        salad, onion quiche, sweet potato mash, pear compote, walnut bread, corn fritters, leek omelette, couscous"""
    ),
    "hobby": words(
        """playing the violin, rock climbing, birdwatching, pottery, chess, open-water swimming, knitting, astronomy,
        baking bread, film photography, bonsai, sailing, calligraphy, woodworking, tango, beekeeping, sketching,
        learning Portuguese, growing tomatoes, restoring bicycles, singing in a choir, juggling, model trains, archery,
        long-distance cycling, mushroom hunting, origami, playing the banjo, badminton, bookbinding, yoga, fencing,
        making cheese, writing short stories, orienteering, playing the harmonica, embroidery, cold-water surfing"""
    ),
    "topic": words(
        """how rainbows form, why leaves change colour, how tides work, why bread rises, how vaccines train the body,
        what causes thunder, how a bicycle stays upright, why the sea is salty, how glass is made, how bees find flowers,
        what makes a good melody, why we dream, how maps distort the globe, how paper is recycled, why onions make us
        cry, how a lock and key work, what inflation means, how a river carves a valley, why metals rust, how planes fly,
        how a refrigerator keeps cold, what an alphabet is good for, why cats purr, how a compass works, how yeast
        ferments, why the moon has phases, how soap removes grease, how an elevator stays safe, how fireflies glow,
        what a library classification does, how a violin makes sound, why deserts get cold at night, how coral reefs
        grow, how a battery stores energy, why stars twinkle, how wool becomes yarn, how a canal lock lifts boats,
        what makes ice slippery, how seeds know when to sprout, how a telescope gathers light, why popcorn pops,
        how a bridge carries weight, what a budget is for, how memory fades, how honey keeps so long, why birds migrate,
        how a steam engine works, what the ozone layer does, how a barcode is read, how clouds form,
        how cheese ripens, why we yawn, how a thermometer works, what a fair vote needs, how earthquakes are measured,
        why some wood floats, how a camera focuses, what makes a desert, how ants share work, how glaciers move"""
    ),
    "audience": words(
        """a curious ten-year-old, a retired sailor, a class of teenagers, my grandmother, a busy nurse, a new
        colleague, a group of hikers, a sceptical engineer, a first-year student, someone learning English, a young
        chef, a museum visitor, a radio audience, a farmer, a night-shift guard, a ballet dancer, a football team,
        a shy beginner, a visiting uncle, a book club, a tired parent, a village council, a taxi driver, a poet"""
    ),
    "month": words("January, February, March, April, May, June, July, August, September, October, November, December"),
    "weekday": words("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
    "colour": words("red, blue, green, yellow, white, black, orange, purple, brown, grey, silver, turquoise"),
    "manner": words(
        """young, retired, tired, local, former, careful, cheerful, stubborn, part-time, famous, quiet, nosy, patient, clumsy,
        thrifty, bearded, left-handed, forgetful, hopeful, talkative, strict, gifted"""
    ),
    "state": words(
        """cheap, broken, new, used, heavy, small, painted, wrapped, borrowed, odd, fine, dusty, sturdy, plain, wet, spare,
        foreign, faded, scented, numbered, gilded, sticky"""
    ),
    "trait": words(
        """shy, hungry, tame, curious, lame, noisy, sleepy, clever, old, young, lost, grey, tiny, huge, friendly, wet, proud,
        spotted, limping, greedy, gentle, restless"""
    ),
    "air": words(
        """old, quiet, crowded, half-empty, freshly painted, damp, well-known, tiny, draughty, locked, sunny, forgotten, noisy,
        flooded, rented, smoky, windy, wooden, chilly, tidy, crooked, splendid"""
    ),
    "herb": words(
        """mint, garlic, ginger, nuts, chilli, cinnamon, lemon, cream, sage, mustard, honey, sesame, saffron, raisins, dill,
        pepper, capers, nutmeg, basil, fennel, rosemary, thyme"""
    ),
    "job": ("{trade}", "{manner} {trade}", "{manner} {trade}"),
    "thing": ("{ware}", "{state} {ware}", "{state} {ware}"),
    "animal": ("{beast}", "{trait} {beast}", "{trait} {beast}"),
    "place": ("{site}", "{air} {site}", "{air} {site}"),
    "food": ("{dish}", "{dish} with {herb}", "{dish} with {herb}"),
}
