"""A backend that dies, hangs, refuses, talks, or is wrong, as the name of the model's test says."""

from __future__ import annotations

import os
import time
from typing import Any

from onnx.reference import ReferenceEvaluator

__version__ = "7.5"


class Prepared:
    def __init__(self, model: Any) -> None:
        self.model = model

    def run(self, inputs: list[Any]) -> list[Any]:
        name = self.model.graph.name
        print("this is no reply")
        if "odd_total" in name:
            os.abort()
        if "bias" in name:
            time.sleep(60)
        if "weights_on_padding" in name:
            raise NotImplementedError("no infinities here")
        names = [value.name for value in self.model.graph.input]
        outputs = list(ReferenceEvaluator(self.model).run(None, dict(zip(names, inputs, strict=True))))
        return [outputs[0] + 1] if "kernel_of_one" in name else outputs


def prepare(model: Any, device: str) -> Prepared:
    return Prepared(model)
