#!/usr/bin/env python3
"""Each place of the device code that a test may weaken is weakened by one, and each weakening that a test names is there."""
import glob
import os
import re
import sys

root = os.environ["COT_SOURCE"]


def read(pattern):
    return "".join(open(name).read() for name in sorted(glob.glob(os.path.join(root, pattern))))


places = re.findall(r"COT_(?:UNLESS|EITHER)\((\w+)", re.sub(r"#define.*", "", read("cuda/*.h") + read("cuda/*.cu")))
tests = read("tests/cuda/test_*.cpp")
own = set(re.findall(r"COT_(?:UNLESS|EITHER)\((\w+)", tests))  # of the emulator's own tests
rooms = {place.split("_")[0] for place in places}
named = {word for text in re.findall(r'"([a-z0-9_ ]+)"', tests) for word in text.split()
         if "_" in word and word.split("_")[0] in rooms}
wrong = [f"no test weakens '{place}'" for place in sorted(set(places) - named)]
wrong += [f"a test weakens '{name}', which is nowhere" for name in sorted(named - set(places) - own)]
wrong += [f"'{place}' is more than one place" for place in sorted(set(places)) if places.count(place) > 1]
if not places:
    wrong.append("no place was found")
for line in wrong:
    print(line)
print(f"{len(set(places))} places, each weakened by a test" if not wrong else f"{len(wrong)} wrong")
sys.exit(bool(wrong))
