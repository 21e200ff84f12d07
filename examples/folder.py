"""Classify a folder of images, go on where the last call stopped, and say which answers are worth a look.

python examples/folder.py photos/ --classes cat dog bird --model open_clip:ViT-B-16/openai
"""

import argparse
from pathlib import Path

import lessmore

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", help="searched to any depth")
parser.add_argument("--classes", nargs="+", required=True)
parser.add_argument("--model", default="tiny", help="default: %(default)s, an embedded model of a small drawn world")
parser.add_argument("--state", type=Path, default=Path("stream.safetensors"), help="default: %(default)s")
parser.add_argument("--sure", type=float, default=0.7, help="confidence below which to look; default: %(default)s")
args = parser.parse_args()

adapter = lessmore.adapt(args.model, args.classes, device="auto")
if args.state.exists():
    adapter.restore(args.state)

for prediction in adapter.stream(args.folder, on_error="yield"):
    if isinstance(prediction, lessmore.Prediction):
        look = "  look" if prediction.confidence < args.sure else ""
        print(f"{prediction.label}  {prediction.confidence:.2f}{look}")
    else:
        print(f"no answer: {prediction}")

adapter.save(args.state)
print(f"{adapter.health().seen} images so far; the next call goes on from {args.state}")
