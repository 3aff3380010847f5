#!/usr/bin/env python3
"""Trains DistilBERT on both sides in turn, several times on the same data, and prints medians, ratios and spread.

    bench/against_pytorch.py --python VENV/bin/python --model DIR --mrpc train.tsv --sst2 train.tsv

Needs build/bench/step, gemm and tokenizer (make bench), and for the other side a Python with torch, transformers and
accelerate. Each measurement is a process of its own. Work: MRPC's pairs (batch 16, up to 128 tokens, padded to the
longest of the batch), SST-2's phrases (batch 32, likewise), 16 synthetic texts of exactly 128 tokens; rows in the order
of the file, the model's own dropout, fused Adam. accel.h never pads. MRPC's columns are "#1 String", "#2 String" and
"Quality", SST-2's "sentence" and "label". Only PyTorch as installed is run: neither torch.compile nor Intel's
extension.
"""
import argparse
import os
import shlex
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
SIDES = ["accel.h", "the other side"]
RATES = f"{'accel.h':>9s} {'+-%':>6s} {'theirs':>9s} {'+-%':>6s} {'ratio':>6s} {'of turns':>10s}"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    parser.add_argument("--model", required=True, help="pretrained DistilBERT folder")
    parser.add_argument("--mrpc", help="train.tsv of MRPC")
    parser.add_argument("--sst2", help="train.tsv of SST-2")
    parser.add_argument("--rounds", type=int, default=3, help="turns of both sides (default 3)")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each turn (default 20)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before, at least 1 (default 2)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--precision", default="fp32,bf16", help="comma-separated (default fp32,bf16)")
    parser.add_argument("--work", default="mrpc,sst2,full,tokenizer", help="comma-separated (default: all)")
    parser.add_argument("--core", help="OPENBLAS_CORETYPE for accel.h's side, such as Haswell")
    args = parser.parse_args()
    args.warmup = max(args.warmup, 1)  # the first step is never timed
    return args


def workloads(args):
    """name -> (title, options of both sides), and what cannot be run."""
    tables = {
        "mrpc": ("MRPC, batch 16", args.mrpc, ["--text", "#1 String,#2 String", "--label", "Quality", "--batch", "16"]),
        "sst2": ("SST-2 phrases, batch 32", args.sst2, ["--text", "sentence", "--label", "label", "--batch", "32"]),
    }
    found, missing = {"full": ("full 16 x 128", ["--batch", "16"])}, []
    for name, (title, path, options) in tables.items():
        if path:
            found[name] = (title, ["--tsv", path] + options)
        else:
            missing.append(f"{title}: no --{name} FILE was given")
    wanted = args.work.split(",")
    return [found[name] for name in wanted if name in found], missing if len(wanted) > 1 else []


def run(command, environment=None):
    """The name=value pairs that the command prints, or None and its message."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})})
    except OSError as error:
        return None, str(error)
    if done.returncode:
        return None, (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    pairs = [word.split("=") for word in done.stdout.split() if "=" in word]
    return {name: float(value) for name, value in pairs}, None


def peer(args, what):
    return [args.python, os.path.join(HERE, "peer.py"), what]


def own_environment(args):
    return {"OPENBLAS_CORETYPE": args.core} if args.core else {}


def train(side, args, options, precision):
    common = ["--model", args.model, "--precision", precision, "--threads", str(args.threads), "--length", "128",
              "--steps", str(args.steps), "--warmup", str(args.warmup)] + options
    if side == 0:
        return run([os.path.join(ROOT, "build/bench/step"), "--brief"] + common, own_environment(args))
    return run(peer(args, "train") + common)


def alternate(args, measure):
    """Results of each side, by turns; None and a message for a side that cannot run."""
    results, faults = [[], []], [None, None]
    for _ in range(args.rounds):
        for side in range(2):
            if faults[side]:
                continue
            result, faults[side] = measure(side)
            if result:
                results[side].append(result)
    return results, faults


def values(results, name):
    return [result[name] for result in results]


def spread(numbers):
    """Largest distance from the median, in per cent of it."""
    middle = statistics.median(numbers)
    return 100 * max(abs(n - middle) for n in numbers) / middle


def rate_columns(results, name, digits):
    rates = [values(side, name) for side in results]
    medians = [statistics.median(r) for r in rates]
    turns = [ours / theirs for ours, theirs in zip(*rates)]
    return (f"{medians[0]:9.{digits}f} {spread(rates[0]):6.1f} {medians[1]:9.{digits}f} {spread(rates[1]):6.1f} "
            f"{medians[0] / medians[1]:6.2f} {min(turns):5.2f}-{max(turns):.2f}")


def check_tokens(title, tokens, faults):
    if tokens[0] != tokens[1]:
        faults.append(f"{title}: not comparable, the sides worked on {tokens[0]:.0f} and {tokens[1]:.0f} tokens")


def report_training(args, title, options, precision, faults):
    results, fault = alternate(args, lambda side: train(side, args, options, precision))
    faults += [f"{title}, {precision}, {SIDES[i]}: {fault[i]}" for i in range(2) if fault[i]]
    if not all(results):
        return
    sides = [{name: statistics.median(values(side, name)) for name in side[0]} for side in results]
    real = 100 * sides[1]["tokens"] / sides[1]["padded"]
    name = f'"{title}, {precision}"'
    print(f"{name:32s} {rate_columns(results, 'samples_per_second', 2)}", end="")
    for column, form in [("peak_mb", "7.0f"), ("start", "6.2f"), ("loss", "7.3f")]:
        print("", *(f"{side[column]:{form}}" for side in sides), end="")
    print(f" {real:6.1f}", flush=True)
    check_tokens(title, [side["tokens"] for side in sides], faults)


def tokenize(side, args, threads):
    common = ["--tsv", args.mrpc, "--text", "#1 String,#2 String", "--length", "128"]
    if side:
        return run(peer(args, "tokenize") + ["--model", args.model, "--threads", str(threads)] + common)
    program = [os.path.join(ROOT, "build/bench/tokenizer"), "--vocab", args.model, "--most", str(threads)]
    try:
        done = subprocess.run(program + common, capture_output=True, text=True)
    except OSError as error:
        return None, str(error)
    lines = done.stdout.splitlines()
    rows = [line.split() for line in lines if line and line[0] != "#"]
    if done.returncode or not rows:
        return None, done.stderr.strip() or "no output"
    tokens = next(line.split()[3] for line in lines if line.startswith("# ") and "rows, " in line)
    return {"mtokens_per_second": float(rows[-1][1]), "tokens": float(tokens)}, None


def report_tokenizers(args, faults):
    print("\n\n# tokenizer on MRPC's pairs, million tokens/s; theirs: Hugging Face tokenizers, encode_batch_fast")
    print(f"#{'threads':31s} {RATES}")
    for threads in sorted({1, args.threads}):
        results, fault = alternate(args, lambda side: tokenize(side, args, threads))
        faults += [f"tokenizer, {SIDES[i]}: {fault[i]}" for i in range(2) if fault[i]]
        if not all(results):
            continue
        print(f"{threads:<32d} {rate_columns(results, 'mtokens_per_second', 3)}", flush=True)
        check_tokens("tokenizer", [side[0]["tokens"] for side in results], faults)


def processor():
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{models[0] if models else 'unknown'}, {os.cpu_count()} cores"


def header(args):
    versions = subprocess.run(peer(args, "versions"), capture_output=True, text=True)
    theirs = versions.stdout.strip() or "not to be had: " + (versions.stderr.strip().splitlines() or ["no message"])[-1]
    gemm = [os.path.join(ROOT, "build/bench/gemm"), "--tokens", "16", "--seconds", "0.001"]
    ours = subprocess.run(gemm + ["--threads", str(args.threads)], capture_output=True, text=True,
                          env={**os.environ, **own_environment(args)}).stdout.splitlines()
    print("# DistilBERT training: accel.h against PyTorch, by turns")
    print(f"# machine: {processor()}; load before the run {os.getloadavg()[0]:.2f}")
    for line in ours:
        if line.startswith(("# BLAS", "# versions", "# limit")):
            print(line)
    print(f"# the other side: {theirs}")
    print("# command:", shlex.join(sys.argv))
    print(f"# {args.rounds} turns of {args.steps} steps after {args.warmup}, {args.threads} threads; samples/s: median "
          "of the turns, and the largest distance from it")
    print("# MB: peak resident memory; start: seconds from the program's begin to the end of the first step; "
          "real %: of the tokens that PyTorch works on")


def main():
    args = arguments()
    header(args)
    print(f"#{'work':31s} {RATES} {'MB':>7s} {'theirs':>7s} {'start':>6s} {'theirs':>6s} {'loss':>7s} {'theirs':>7s} "
          f"{'real %':>6s}", flush=True)
    work, faults = workloads(args)
    for title, options in work:
        for precision in args.precision.split(","):
            report_training(args, title, options, precision, faults)
    if "tokenizer" in args.work.split(",") and args.mrpc:
        report_tokenizers(args, faults)
    for fault in faults:
        print("# could not run:", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
