"""Ultralytics' YOLO on a tiny model and four images made here: weights/last.pt and best.pt. A step is an epoch.

The checkpoint holds the averaged weights in half precision, so that the framework itself does not resume exactly.
"""

import os

os.environ |= {"YOLO_OFFLINE": "True", "YOLO_VERBOSE": "False", "CUDA_VISIBLE_DEVICES": ""}

import common
import numpy
import torch
import ultralytics
from PIL import Image
from ultralytics.models.yolo.detect import DetectionTrainer

MODEL = """
nc: 2
scales: {n: [0.33, 0.125, 128]}
backbone:
  - [-1, 1, Conv, [32, 3, 2]]
  - [-1, 1, Conv, [64, 3, 2]]
  - [-1, 1, Conv, [128, 3, 2]]
head:
  - [[2], 1, Detect, [nc]]
"""


def make_data(directory):
    """Images of a bright square each, with labels, and the file that names them."""
    for number in range(4):
        for part in ("images", "labels"):
            (directory / part).mkdir(parents=True, exist_ok=True)
        pixels = numpy.random.default_rng(number).integers(0, 80, (64, 64, 3), dtype="uint8")
        left = 8 + 8 * number
        pixels[16:48, left : left + 24] = 250
        Image.fromarray(pixels).save(directory / f"images/{number}.png")
        (directory / f"labels/{number}.txt").write_text(f"{number % 2} {(left + 12) / 64} 0.5 {24 / 64} 0.5\n")
    (directory / "data.yaml").write_text(f"path: {directory}\ntrain: images\nval: images\nnames: [a, b]\n")
    (directory / "tiny-yolov8n.yaml").write_text(MODEL)


class Trainer(DetectionTrainer):
    def save_model(self):
        common.saving(self.epoch + 1)
        result = super().save_model()
        common.saved(self.epoch + 1, "weights/last.pt", "weights/best.pt")
        return result


def begin(trainer):
    common.resume(trainer.start_epoch)


def epoch_end(trainer):
    common.pause()
    common.loss(trainer.epoch + 1, sum(float(value) for value in trainer.tloss.values()))


arguments = common.arguments()
torch.set_num_threads(1)
data = arguments.directory.parent / "data"
make_data(data)
last = arguments.directory / "weights/last.pt"
if last.exists() and torch.load(last, weights_only=False)["epoch"] < 0:
    common.resume(arguments.until)  # finished: the optimizer was removed
    model = ultralytics.YOLO(str(last))
else:
    model = ultralytics.YOLO(str(last if last.exists() else data / "tiny-yolov8n.yaml"))
    model.add_callback("on_train_start", begin)
    model.add_callback("on_train_epoch_end", epoch_end)
    # Without augmentation, since the framework does not save the random state.
    still = dict.fromkeys(["mosaic", "hsv_h", "hsv_s", "hsv_v", "translate", "scale", "fliplr", "erasing"], 0.0)
    model.train(
        trainer=Trainer, data=str(data / "data.yaml"), epochs=arguments.until, imgsz=64, batch=4, workers=0,
        device="cpu", project=str(arguments.directory.parent), name=arguments.directory.name, exist_ok=True, amp=False,
        plots=False, optimizer="AdamW", lr0=1e-3, warmup_epochs=0, nbs=4, resume=last.exists(), **still,
    )  # fmt: skip
    # At the end the framework removes the optimizer from the file.
    common.saving(arguments.until)
common.saved(arguments.until, "weights/last.pt", "weights/best.pt")
common.end([])
