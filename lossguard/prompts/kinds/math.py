"""Math: word problems with several steps, estimates, geometry, sequences, rates and chance."""

from __future__ import annotations

from lossguard.prompts.distinct_text import Words
from lossguard.prompts.kinds.vocabulary import COMMON, words

WORDS: Words = {
    **COMMON,
    "show": words(
        """Show every step to {audience}., Explain every calculation to {audience}., Solve it in {2..4} ways., Check the
        result with {name}., Name each quantity first., Write the equation {2..5} ways., Explain it to {audience}., Say
        where {name} might go wrong., Answer {name} in full sentences., Estimate first; then calculate., Use a table of {thing}.,
        Justify {2..6} steps., Round to {1..4} digits and explain., Show the working like a {job}., Draw it with {thing}.,
        Reason like a {job} would., How would {name} do it without paper?, Write {3..9} lines of working."""
    ),
    "shape": words("garden, courtyard, sports field, mural, rug, fish pond, stage, parking area, terrace, greenhouse"),
    "vehicle": words("train, ferry, bicycle, delivery van, tram, canal boat, coach, scooter, cargo ship, tractor"),
    "liquid": words("apple juice, rainwater, olive oil, milk, lemonade, paint, maple syrup, vinegar, sea water, broth"),
    "vessel": words("tank, barrel, pool, cistern, vat, aquarium, water tower, bathtub, boiler, reservoir"),
    "group": words(
        "a choir, a chess club, a hiking group, an orchestra, a school class, a football team, a workshop, an office"
    ),
    "figure": (
        "a triangle with sides {9..14}, {15..19} and {20..22} cm",
        "a circle with radius {3..29} cm",
        "a rectangle of {4..38} by {5..47} m",
        "a cube with edge {2..19} cm",
        "a cylinder of radius {2..14} cm and height {5..44} cm",
        "a trapezoid with parallel sides {6..15} and {16..30} cm, {3..21} cm apart",
        "a square with diagonal {4..36} cm",
        "a cone of height {6..33} cm and base radius {2..15} cm",
    ),
    "quantity": words("area, perimeter, volume, surface, diagonal, largest inscribed circle, cost of painting it"),
}

FULL = (
    "{name:a}, a {job}, sells {thing:t} at {3..19} euros each and {thing:u} at {2..17} euros each. On {weekday:d} the"
    " stall in {town} took {220..980} euros for {40..75} pieces. By {month} prices rise {5..35} percent,"
    " and {name:b} buys {3..18} {thing:t} with a voucher from {town:b}. How many {thing:t} were sold, and what does"
    " {name:b} pay? {show}",
    "A {vehicle:v} leaves {town:a} at {6..11}:{10..55} and travels at {35..95} km/h towards {town:b}, {140..690} km"
    " away. A {vehicle:w} leaves {town:b} {10..90} minutes later at {25..85} km/h, but {name:r} rests {5..45} minutes at a {place}. Where can {name} see them meet? {show}",
    "A {vessel:v} holds {300..5000} litres of {liquid:l} and is {10..70} percent full. One pipe adds {4..48} litres a"
    " minute; another drains {2..31} litres a minute; after {12..90} minutes {name} opens a {colour} one that adds {3..27} for a {job}."
    " When is the {vessel:v} full, when {20..90} percent? {show}",
    "{name:a} saves {20..340} euros a month at {1..6}.{10..95} percent a year; {name:b} starts with {400..4800}"
    " euros but takes out {15..95} euros each month for {hobby}. When does {name:a} overtake {name:b}, and what after {2..9} years? {show}",
    "In {group:g} of {24..90} people, {10..20} like {hobby:a}, {8..19} like {hobby:b} and {3..7} like both. {name:a}"
    " draws {2..4} of them to visit the {place} of {town}. How likely do all like {hobby:a}, or exactly one {hobby:b}?"
    " {show} Then answer for {5..8} drawn.",
    "A {shape:s} in {town} measures {12..64} m by {9..48} m. {name} surrounds it by a path of {1..4}.{10..95} m,"
    " using tiles of {20..60} cm that cost {2..14} euros, of which {name:k} breaks {13..97}. {figure}, scaled {5..20}-fold, lies inside for {name:y}. What does {name:z} pay for the {shape:s}? {show}",
    "A sequence starts with {2..19}, {20..58}, {59..140}; multiply by {2..9}, subtract"
    " {13..97}, and so on. A {job} in {town} says term {9..30} is divisible by {3..13}; {name:b} doubts it. Find {6..12} terms for the {job:b}. {show} Add up {6..25} terms for {name}.",
    "{name:a} can finish {60..480} {thing:t} in {3..19} hours, {name:b} in {4..23} hours, and their {animal} spoils"
    " {2..14} pieces every {20..75} minutes. They start together, but {name:b} leaves after {40..170} minutes for"
    " {hobby}. When is the work done? {show} How would the answer change if {name:c} helped at half of {name:a}'s speed?",
)

BRIEF = (
    "{name} buys {3..40} {thing:t} at {2..19} euros and {2..30} {thing:u} at {3..17}. What is the total? {show}",
    "A {vehicle} goes {60..700} km at {20..95} km/h with a {5..50} minute stop. How long? {show}",
    "How do I find the {quantity} of {figure}? Explain.",
    "A {vessel} of {200..4000} litres fills at {3..48} litres a minute. When full? {show}",
    "{name} has {120..990} {thing}, gives away {5..60} percent, then {3..40} more. How many remain? {show}",
    "Explain step by step how to divide {300..9000} by {6..48} by hand.",
    "What is {11..99} times {12..98}, and how would a {job} work it out in the head?",
    "Is {201..2999} a prime number? {show}",
    "{group} of {12..60} splits the cost of {80..990} euros. How much for each? {show}",
    "Make up a word problem about {thing} and a {job} with the answer {7..480}. Solve it.",
)
