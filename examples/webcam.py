"""Classify what a camera sees, a frame a second, and print an answer whenever it changes.

    python examples/webcam.py --source /dev/video0 --classes mug phone hand --model open_clip:ViT-B-16/openai

The source is anything that FFmpeg opens: a camera's device, a video file, an address. `pip install av` brings FFmpeg.
Reconnecting, dropped frames and several cameras at once are left out here.
"""

import argparse

import av

import lessmore

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--source", required=True)
parser.add_argument("--classes", nargs="+", required=True)
parser.add_argument("--model", default="tiny", help="default: %(default)s, an embedded model of a small drawn world")
parser.add_argument("--every", type=float, default=1.0, help="seconds between two frames; default: %(default)s")
args = parser.parse_args()

adapter = lessmore.adapt(args.model, args.classes, device="auto")
due, shown = 0.0, ""
with av.open(args.source) as video:
    for frame in video.decode(video=0):
        if frame.time is None or frame.time < due:
            continue
        due = frame.time + args.every
        prediction = adapter(frame.to_image())
        if prediction.label != shown:
            shown = prediction.label
            print(f"{frame.time:7.1f} s  {shown}  {prediction.confidence:.2f}")
