"""A small service of your own: one stream per client, in memory. `lessmore serve` is the one to run in earnest.

LESSMORE_MODEL=open_clip:ViT-B-16/openai LESSMORE_CLASSES="cat,dog,bird" uvicorn fastapi_app:app --app-dir examples
"""

import os

from fastapi import FastAPI, HTTPException, UploadFile

import lessmore
from lessmore.errors import ImageError

model = os.environ.get("LESSMORE_MODEL", "tiny")
classes = os.environ.get("LESSMORE_CLASSES", "red striped star,blue dotted fish,green plain cloud").split(",")
streams = lessmore.Streams(lessmore.adapt(model, classes, device="auto"), resident=100)
app = FastAPI(title="classify")


@app.post("/streams/{name}")
def classify(name: str, image: UploadFile) -> dict[str, object]:
    """The answer to the next image of a stream."""
    try:
        prediction = streams(name, image.file.read())
    except ImageError as error:
        raise HTTPException(422, str(error)) from error
    return {"label": prediction.label, "confidence": prediction.confidence}
