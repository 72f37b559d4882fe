# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The same logits at every batch size
#
# A server collects requests and answers them together: one image now, thirty a moment later. The same image then gets
# logits that differ in their last bits, because products of other shapes add the same terms in another order. Logs do
# not compare, caches miss, and a policy that was sampled in one batch and evaluated in another is not the same policy.
#
# With `invariant="batch"` an image's result has the same bits in any batch. This page serves a model at batch sizes 1
# to 32, without this argument and with it, and compares hashes.
#
# To run it: `pip install -e ".[examples]"` in a checkout, then `jupyter lab examples/batch_invariance.ipynb`.

# %%
import hashlib
import warnings

import matplotlib.pyplot as plt
import numpy as np
import onnx
from matplotlib.colors import ListedColormap
from onnx import numpy_helper

from gpuconv.onnx import backend

# %% [markdown]
# ## A model
#
# Convolutions, a normalization of channels, and a classifier. Weights are random; what matters here is the rounding.

# %%
random = np.random.default_rng(0)
shapes = {
    "w1": (32, 3, 3, 3),
    "w2": (64, 32, 3, 3),
    "w3": (64, 64),
    "w4": (10, 64),
    "b4": (10,),
    "scale": (64,),
}
model = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["" : 22]>
classifier (float[N, 3, 32, 32] image) => (float[N, 10] logits) {
    a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (image, w1)
    b = Relu (a)
    c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (b, w2)
    d = Relu (c)
    e = GlobalAveragePool (d)
    f = Flatten (e)
    g = MatMul (f, w3)
    h = LayerNormalization (g, scale)
    logits = Gemm <transB = 1> (h, w4, b4)
}
""")
model.graph.initializer.extend(
    numpy_helper.from_array(random.normal(0, 0.2, shape).astype(np.float32), name)
    for name, shape in shapes.items()
)
images = random.standard_normal((32, 3, 32, 32), np.float32)

# %% [markdown]
# ## A server
#
# It answers all images in batches of one size. A client keeps a hash of the answer's bytes.


# %%
def answers(rep: backend.Rep, size: int) -> list[str]:
    """Return the hash of every image's logits, served in batches of this size."""
    logits = np.concatenate(
        [
            rep.run([images[first : first + size]])["logits"]
            for first in range(0, len(images), size)
        ]
    )
    return [hashlib.sha256(row.tobytes()).hexdigest() for row in logits]


sizes = range(1, 33)
words = {"as it comes": None, 'invariant="batch"': "batch"}
found = {
    name: [answers(backend.prepare(model, invariant=word), size) for size in sizes]
    for name, word in words.items()
}

# %% [markdown]
# ## What clients see
#
# For every image, how many different answers it got at the 32 batch sizes.

# %%
for name, by_size in found.items():
    different = [len(set(hashes)) for hashes in zip(*by_size, strict=True)]
    same = sum(number == 1 for number in different)
    print(f"{name:18} {same:2} of 32 images have one answer at all batch sizes")

assert all(
    len(set(hashes)) == 1 for hashes in zip(*found['invariant="batch"'], strict=True)
)

# %% [markdown]
# ## What cannot be kept
#
# Some operators combine images by definition. They are named once, when they run, and in the report.

# %%
centred = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["" : 22]>
centred (float[N, 4] x) => (float[N, 4] y) {
    axes = Constant <value_ints = [0]> ()
    mean = ReduceMean (x, axes)
    y = Sub (x, mean)
}
""")
rep = backend.prepare(centred, invariant="batch")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    rep.run([images[:, 0, 0, :4]])
print(caught[-1].message)
print(rep.report())
assert [node.op_type for node in rep.report().meets] == ["ReduceMean"]
assert caught

# %% [markdown]
# ## Image by image
#
# Each row below is an image, each column a batch size. Dark squares have the bits of batch size 1.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), sharey=True)
for axis, (name, by_size) in zip(axes, found.items(), strict=True):
    equal = [
        [hashes[image] == by_size[0][image] for hashes in by_size]
        for image in range(32)
    ]
    axis.imshow(
        equal,
        cmap=ListedColormap(["#e0b070", "#305070"]),
        vmin=0,
        vmax=1,
        extent=(0.5, 32.5, 32.5, 0.5),
    )
    axis.set(title=name, xlabel="batch size", xticks=[1, 8, 16, 24, 32])
axes[0].set_ylabel("image")
figure.tight_layout()
plt.show()
