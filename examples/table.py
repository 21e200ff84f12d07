"""Answers as a pandas table: accuracy by class on images whose labels are known, adapted beside zero-shot.

python examples/table.py photos/ --model open_clip:ViT-B-16/openai     # photos/CLASS/IMAGE
"""

import argparse
from pathlib import Path

import pandas as pd

import lessmore

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=Path, help="one folder for each class")
parser.add_argument("--model", default="tiny", help="default: %(default)s, an embedded model of a small drawn world")
args = parser.parse_args()

paths = sorted(path for path in args.folder.glob("*/*") if path.is_file())
adapter = lessmore.adapt(args.model, sorted({path.parent.name for path in paths}), device="auto")

rows = []
for path, prediction in zip(paths, adapter.stream(paths), strict=True):
    zero_shot = prediction.classes[int(prediction.zero_shot_scores.argmax())]
    rows.append({"class": path.parent.name, "zero-shot": zero_shot, "adapted": prediction.label})

table = pd.DataFrame(rows)
right = table[["zero-shot", "adapted"]].eq(table["class"], axis=0)
print(right.groupby(table["class"]).mean().assign(images=table.groupby("class").size()).round(3).to_string())
print(right.mean().round(3).to_string())
