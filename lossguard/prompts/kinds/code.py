"""Code: functions to write, code to explain, review, test, translate or design."""

from __future__ import annotations

from lossguard.prompts.distinct_text import Words
from lossguard.prompts.kinds.vocabulary import COMMON, words

WORDS: Words = {
    **COMMON,
    "language": words(
        "Python, JavaScript, Rust, Go, Java, C, C++, Ruby, TypeScript, Kotlin, Swift, Haskell, Lua, Julia"
    ),
    "verb": words(
        """count, merge, rotate, sort, reverse, compress, group, filter, deduplicate, split, pad, rank, shuffle, validate,
        parse, flatten, interleave, transpose, normalise, summarise, partition, encode, index, compare, sample, batch"""
    ),
    "input": words(
        """a list of integers, a list of words, a nested dictionary, a CSV line, a matrix of floats, a binary tree, a
        linked list, a string of brackets, a list of time stamps, a stream of log lines, a graph as an edge list, a set of
        intervals, a queue of tasks, a sparse vector, a list of {thing}, a table of {animal} sightings, a sentence,
        a Roman numeral, a list of coordinates, a bit mask, a chess position, a play list, a shopping basket, a calendar"""
    ),
    "goal": words(
        """keeping the original order, in linear time, without extra memory, without recursion, using recursion, with a
        generator, ignoring upper and lower case, treating empty input as an error, returning the {2..9} largest, skipping
        every {2..9}th element, with at most {2..9} passes, in place, lazily, stopping at the first negative value, with
        ties broken by name, for at least {10..90} million items, so that it can be undone, with a progress callback"""
    ),
    "style": words(
        """Add type hints., Explain the complexity to {audience}., Include {2..9} tests with {thing}., Comment the {noun}
        handling., Then shorten it., Handle an empty {noun}., Name {2..6} edge cases., Use only the standard library.,
        Describe your approach to {audience} first., Say how {name} could measure it., Raise clear errors for a bad {noun}.,
        End with an example about {thing}., Avoid global state., Use {thing} in the example., Call the result {stem}.,
        Limit it to {12..90} lines., Mention what {language} does differently., Keep {name}'s {noun} unchanged."""
    ),
    "stem": words(
        """apple, anchor, bridge, bucket, candle, cargo, delta, ember, fabric, garnet, harbor, island, jacket, kettle,
        ladder, meadow, needle, orbit, paddle, quartz, ribbon, saddle, tunnel, urchin, valley, walnut, yonder, zephyr, basin,
        cobalt, drift, falcon, glacier, hollow, ivory, juniper, lantern, marble, nectar, opal, pebble, quiver, raven, summit"""
    ),
    "noun": words(
        """total, limit, offset, score, weight, index, ratio, marker, bound, cursor, budget, token, layer, depth, slot, window,
        margin, signal, bucket, factor, width, phase, level, delay"""
    ),
    "system": words(
        """a library catalogue, a bus timetable, a recipe box, a parking garage, a chess clock, a weather station, a seed
        bank, a ticket counter, a bakery order book, a choir rehearsal planner, a museum audio guide, a ferry booking desk, a
        plant watering robot, a lost-and-found office, a bicycle rental, a beehive monitor, a school canteen, a post office"""
    ),
    "problem": words(
        """it returns one item too few, it never ends for empty input, it changes its argument, it is slow for {2..9}000
        items, the last element is lost, negative numbers break it, equal items change places, it works once but
        not twice, it fails for the value {2..99}, it mixes up rows and columns, rounding makes the sum drift"""
    ),
    "request": words(
        """Explain it to {audience}., Find out why {problem}., Rewrite it in {language}., Write {3..8} tests for {noun}.,
        What happens for {3..99}?, Give it names about {thing}., Turn it into {2..5} parts for {name}., Improve its {noun}.,
        When does {noun} overflow?, Make it shorter for {name}., Trace it with {2..9} {thing}., Extend it to {input}.,
        Would a {job} understand it?, Add a {noun} parameter., Make it {verb} {input} as well."""
    ),
    "width": words("i64, u64, i32, u32, f64, i16, usize, u8"),
    "snippet": (
        "def {stem:a}_{noun:a}({stem:b}, {noun:b}={2..97}):\n    {noun:c} = {0..9}\n    for {stem:c} in {stem:b}:\n"
        "        if {stem:c} % {2..9} == {0..5}:\n            {noun:c} += {stem:c} * {2..12}\n        elif {stem:c} >"
        " {noun:b}:\n            {noun:c} -= {1..30}\n    return {noun:c}",
        "def {stem:a}({noun:a}):\n    {stem:b} = {}\n    for {noun:b}, {stem:c} in enumerate({noun:a}):\n"
        "        {stem:b}.setdefault({stem:c} // {2..40}, []).append({noun:b} + {1..9})\n    return"
        " sorted({stem:b}, key=lambda {stem:d}: {stem:d} % {2..8})[:{2..8}]",
        "class {stem:a}_{noun:a}:\n    def {stem:d}(self, {noun:b}={3..80}):\n        self.{noun:b} = {noun:b}\n"
        "        self.{stem:b} = [{1..40}, {2..50}]\n\n    def {stem:c}(self, {noun:c}):\n        self.{stem:b}.append({noun:c}"
        " + {1..60})\n        while len(self.{stem:b}) > self.{noun:b}:\n            self.{stem:b}.pop({0..9})\n        return"
        " max(self.{stem:b}) / {2..9}",
        "function {stem:a}({noun:a}, {stem:b}) {\n  let {noun:b} = {0..20};\n  while ({noun:a} > {stem:b}) {\n    {noun:b} +="
        " {noun:a} % {3..19};\n    {noun:a} = Math.floor({noun:a} / {2..7});\n  }\n  return {noun:b} * {2..15};\n}",
        "fn {stem:a}({noun:a}: &[{width:t}]) -> {width:t} {\n    let mut {stem:b} = {0..50};\n    for {noun:b} in {noun:a}.iter() {\n"
        "        {stem:b} = ({stem:b} * {3..31} + {noun:b}) % {90..997};\n    }\n    {stem:b}\n}",
        "SELECT {stem:a}.{noun:a}, COUNT(*) AS {noun:b}\nFROM {stem:a}\nJOIN {stem:b} ON {stem:b}.{noun:c} ="
        " {stem:a}.id\nWHERE {stem:b}.{noun:d} > {3..400}\nGROUP BY {stem:a}.{noun:a}\nHAVING COUNT(*) >= {2..30}\n"
        "ORDER BY {noun:b} DESC\nLIMIT {3..50};",
    ),
}

FULL = (
    "Write a {language} function `{verb:a}_{stem}_{noun}` that takes {input:a} and {2..90} as {noun:b}, to {verb:a} and then {verb:b} {thing} {goal:a}. It should also accept {input:b}. {style:a} {style:b}",
    "{name} wrote this in {town} for {system}:\n\n{snippet}\n\n{request} {style}",
    "Two parts of {name}'s project about {topic}:\n\n{snippet:a}\n\n{snippet:b}\n\n{request} Compare {noun:x} and {noun:y} in both. {style}",
    "A {job} in {town} needs a small {language} program for {system}: it should {verb:a} {input:a} {goal:a}, {verb:b}"
    " {input:b} every {2..58} minutes, and keep {3..90} backups. Use {input:c} for {thing}; write {2..4} functions. {style}",
    "Design classes in {language} for {system} with {2..60} {thing}. Show how to {verb:a} and {verb:b} entries {goal}."
    " {name} fears that {problem}. {style:a} {style:b}",
    "{name:b}, a {job}, finds that {problem}:\n\n{snippet}\n\nIs {name:b} right? {request} {style}",
    "{name} tests a function meant to {verb:a} {input:a} {goal:a}. List {2..9} cases with {thing}, write {language} tests, and add one with random seed {10..9999}. {style}",
)

BRIEF = (
    "Write a {language} function to {verb} {input} {goal}. {style}",
    "Explain how to {verb} {input} in {language}, {goal}.",
    "Design a {language} class for {system}. {style}",
    "How would you test code that can {verb} {input} {goal}?",
    "Write a {language} program that prints {2..40} lines about {thing}. {style}",
    "In {language}, {verb:a} and then {verb:b} {input}. {style}",
    "My {language} code should {verb} {input}, but {problem}. What may be wrong?",
    "Compare two ways to {verb} {input} in {language}.",
)
