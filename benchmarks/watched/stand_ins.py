"""Modules that stand in for what a public script loads its data with: random images, in the place of a download.

Written into a folder that is on the script's path; the script itself is not changed.
"""

from __future__ import annotations

from pathlib import Path

_DATA = '''
import numpy as np

NUM_EXAMPLES = 512


def example(number):
    images = np.random.RandomState(number)
    return {"image": images.randint(0, 255, (28, 28, 1)).astype(np.uint8), "label": np.int64(number % 10)}


def batches(examples, size, drop_remainder):
    for start in range(0, len(examples), size):
        rows = examples[start : start + size]
        if len(rows) == size or not drop_remainder:
            yield rows


def stacked(rows):
    if isinstance(rows[0], dict):
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    if isinstance(rows[0], tuple):
        return tuple(np.stack([row[part] for row in rows]) for part in range(len(rows[0])))
    return np.stack(rows)


class Dataset:
    """As much of tf.data and grain as the scripts use; all examples are made at once."""

    def __init__(self, items, repeats=False):
        self.items, self.repeats = list(items), repeats

    @classmethod
    def source(cls, source):
        return cls(source)

    def map(self, fn, *_, **__):
        return Dataset(map(fn, self.items), self.repeats)

    def batch(self, size, drop_remainder=False, **_):
        kept = self.items
        if self.repeats and len(kept) < size:
            kept = kept * -(-size // len(kept))
        return Dataset(map(stacked, batches(kept, size, drop_remainder or self.repeats)), self.repeats)

    def repeat(self, *_):
        return Dataset(self.items, True)

    def shuffle(self, *_, **__):
        return self

    cache = prefetch = shuffle

    def as_numpy_iterator(self):
        return iter(self)

    def __iter__(self):
        while True:
            yield from self.items
            if not self.repeats:
                return

    def __len__(self):
        return len(self.items)


def mnist():
    return Dataset(map(example, range(NUM_EXAMPLES)))
'''
_TFDS = """
from types import SimpleNamespace

from _data import NUM_EXAMPLES, Dataset, mnist

Split = SimpleNamespace(TRAIN="train", TEST="test")
_INFO = SimpleNamespace(splits={each: SimpleNamespace(num_examples=NUM_EXAMPLES) for each in ("train", "test")})
_FEATURES = {"image": SimpleNamespace(shape=(28, 28, 1)), "label": SimpleNamespace(num_classes=10)}


def load(name, split=None, with_info=False, **_):
    return (mnist(), _INFO) if with_info else mnist()


def builder(name, **_):
    return SimpleNamespace(download_and_prepare=lambda: None, as_dataset=lambda split, **_: mnist(), info=_INFO)


def as_numpy(data):
    return data


class _Source(list):
    dataset_info = SimpleNamespace(features=_FEATURES)


def data_source(name, split):
    found = [_Source(mnist().items) for _ in range(1 if isinstance(split, str) else len(split))]
    return found[0] if isinstance(split, str) else found
"""
_TF = """
from types import SimpleNamespace

import numpy as np
from _data import Dataset

float32, int32, Tensor = np.float32, np.int32, np.ndarray
data = SimpleNamespace(Dataset=Dataset, AUTOTUNE=-1)
random = SimpleNamespace(set_seed=lambda seed: None)
config = SimpleNamespace(experimental=SimpleNamespace(set_visible_devices=lambda *_: None))


def cast(value, dtype):
    return np.asarray(value).astype(dtype)


def reshape(value, shape):
    return np.reshape(value, shape)
"""
_JAX_DATASETS = """
import numpy as np
from _data import mnist as examples


def mnist(permute_train=False):
    items = examples().items
    images = np.stack([each["image"].reshape(-1) for each in items]).astype(np.float32) / 255
    labels = np.eye(10, dtype=np.float32)[[int(each["label"]) for each in items]]
    return images, labels, images, labels
"""
# What the scripts draw with or log to and that has nothing to do with training.
_SILENT = """
class _Anything:
    def __getattr__(self, name):
        return _Anything()

    def __call__(self, *args, **kwargs):
        return _Anything()

    def __iter__(self):
        return iter((_Anything(), _Anything()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything()
"""
_MODULES = {
    "_data.py": _DATA,
    "tensorflow_datasets.py": _TFDS,
    "tensorflow/__init__.py": _TF + _SILENT,
    "tensorflow/io.py": _SILENT,
    "grain.py": "from _data import Dataset as MapDataset\n",
    "examples/__init__.py": "",
    "examples/datasets.py": _JAX_DATASETS,
    "matplotlib/__init__.py": "",
    "matplotlib/pyplot.py": _SILENT,
    "tensorboard/__init__.py": "",
    "tensorboard/plugins/__init__.py": "",
    "tensorboard/plugins/hparams/__init__.py": "",
    "tensorboard/plugins/hparams/api.py": _SILENT,
}


STAND_INS = "stand_ins"


def write_stand_ins(work: Path) -> None:
    """Write all of them where a script runs, into a folder of their own."""
    for name, text in _MODULES.items():
        path = work / STAND_INS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def write_texts(work: Path) -> None:
    """Write texts to train on, and a tiny GPT-2 with a tokenizer of them, where a script runs.

    Without Hugging Face's libraries there is no model; a script that wants it will say so.
    """
    words = "the cat sat on a mat and far away a dog ran to the sea".split()
    lines = [" ".join(words[number % 7 :] + words[: number % 11]) for number in range(400)]
    (work / "texts.txt").write_text("\n".join(lines), encoding="utf-8")
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
        from transformers import GPT2Config, PreTrainedTokenizerFast
    except ImportError:
        return
    made, end = Tokenizer(models.BPE()), "<|endoftext|>"
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=300, special_tokens=[end]))
    taken = ["input_ids", "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token=end, model_input_names=taken).save_pretrained(
        work / "model"
    )
    GPT2Config(
        vocab_size=300, n_positions=64, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    ).save_pretrained(work / "model")
