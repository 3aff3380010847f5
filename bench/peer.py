#!/usr/bin/env python3
"""PyTorch's side of bench/against_pytorch.py: the same training step with Transformers and Accelerate, or the same
texts through Hugging Face tokenizers. Prints one line of name=value pairs.

    peer.py train --model DIR [--tsv FILE --text A,B --label C] [--precision bf16] [--batch 16] [--length 128]
    peer.py tokenize --model DIR --tsv FILE --text A,B [--threads 1]
    peer.py versions
"""
import time
BEGAN = time.perf_counter()
import argparse
import os
import resource
import statistics

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def read_rows(path, columns):
    """Cells of the columns, by name or by number from 0, of a TSV file with a header."""
    with open(path, encoding="utf-8-sig") as file:
        lines = [line.rstrip("\r\n").split("\t") for line in file]
    at = [lines[0].index(c) if c in lines[0] else int(c) for c in columns]
    return [[line[i] for i in at] for line in lines[1:]]


def load_tokenizer(folder):
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(folder, use_fast=True)


def real_examples(args):
    """Token ids and labels, ready before the first step; labels are numbered in their order."""
    columns = args.text.split(",")
    rows = read_rows(args.tsv, columns + [args.label])
    names = sorted({row[-1] for row in rows})
    texts = [[row[i] for row in rows] for i in range(len(columns))]
    ids = load_tokenizer(args.model)(*texts, truncation=True, max_length=args.length)["input_ids"]
    return [(sequence, names.index(row[-1])) for sequence, row in zip(ids, rows)]


def synthetic_examples(args, vocabulary):
    """The rows of bench_synthetic in bench.h."""
    examples, count = [], 0
    for i in range(4 * args.batch):
        examples.append(([1000 + j * 7919 % (vocabulary - 1000) for j in range(count, count + args.length)], i & 1))
        count += args.length
    return examples


def collate(examples):
    """Pads to the longest of the batch."""
    import torch
    longest = max(len(ids) for ids, _ in examples)
    ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in examples])
    mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in examples])
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([label for _, label in examples])}


def set_dropout(model, p):
    import torch
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = p
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = p
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = p


def train(args):
    import torch
    from accelerate import Accelerator
    from transformers import AutoModelForSequenceClassification
    torch.set_num_threads(args.threads or len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if args.precision == "bf16" else "no")
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=2)
    if args.dropout is not None:
        set_dropout(model, args.dropout)
    examples = real_examples(args) if args.tsv else synthetic_examples(args, model.config.vocab_size)
    loader = torch.utils.data.DataLoader(examples, batch_size=args.batch, collate_fn=collate)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-5, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    seconds, samples, tokens, padded, start = [], 0, 0, 0, 0

    def batches():
        while True:
            yield from loader

    source = batches()
    for step in range(args.warmup + args.steps):
        begin = time.perf_counter()
        batch = next(source)
        optimizer.zero_grad()
        loss = model(**batch).loss
        value = loss.item()
        accelerator.backward(loss)
        optimizer.step()
        end = time.perf_counter()
        if step == 0:
            start = end - BEGAN
        if step >= args.warmup:
            seconds.append(end - begin)
            samples += len(batch["labels"])
            tokens += int(batch["attention_mask"].sum())
            padded += batch["attention_mask"].numel()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3 * 1.024
    print(f"samples_per_second={samples / sum(seconds):.4f} median_step={statistics.median(seconds):.6f} "
          f"tokens={tokens} samples={samples} loss={value:.6f} peak_mb={peak:.1f} start={start:.3f} padded={padded}")


def tokenize(args):
    os.environ["TOKENIZERS_PARALLELISM"] = "false" if args.threads == 1 else "true"
    os.environ["RAYON_NUM_THREADS"] = str(args.threads or len(os.sched_getaffinity(0)))
    tokenizer = load_tokenizer(args.model).backend_tokenizer
    tokenizer.no_padding()
    tokenizer.enable_truncation(args.length)
    rows = read_rows(args.tsv, args.text.split(","))
    texts = [tuple(row) if len(row) == 2 else row[0] for row in rows]
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)  # without offsets, where it is there
    tokens = sum(len(e.ids) for e in encode(texts))
    seconds = []
    end = time.perf_counter() + args.seconds
    while len(seconds) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        encode(texts)
        seconds.append(time.perf_counter() - begin)
    print(f"mtokens_per_second={1e-6 * tokens / statistics.median(seconds):.4f} tokens={tokens}")


def versions(_):
    import platform
    import accelerate, tokenizers, torch, transformers
    print(f"Python {platform.python_version()}, PyTorch {torch.__version__} "
          f"({torch.backends.cpu.get_cpu_capability()}), Transformers {transformers.__version__}, "
          f"Accelerate {accelerate.__version__}, tokenizers {tokenizers.__version__}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "tokenize", "versions"])
    parser.add_argument("--model")
    parser.add_argument("--tsv")
    parser.add_argument("--text", default="")
    parser.add_argument("--label")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--dropout", type=float)
    parser.add_argument("--seconds", type=float, default=1)
    args = parser.parse_args()
    {"train": train, "tokenize": tokenize, "versions": versions}[args.what](args)


if __name__ == "__main__":
    main()
