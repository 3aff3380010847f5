#!/usr/bin/env python3
"""The character tables of accel_io.h (>>io-unicode), from asking Hugging Face's tokenizers about every code point.

usage: make_unicode_tables.py               prints the three tables as C
       make_unicode_tables.py CASES VOCAB   writes tokenizer cases with the code points at the ends of the ranges

Needs the Python package tokenizers (they were made with 0.23.3). An entry is a range: first code point << 8 | number
of further ones.
"""
import json, sys
from tokenizers import BertWordPieceTokenizer, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
PRIVATE = [(0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)]  # too long for an entry; the C code names them


def normalizer(**on):
    options = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**options, **on})


def ranges(points):
    out = []
    for c in points:
        if out and out[-1][1] == c - 1: out[-1][1] = c
        else: out.append([c, c])
    return out


clean, strip, split = normalizer(clean_text=True), normalizer(strip_accents=True), pre_tokenizers.BertPreTokenizer()
private = {c for a, b in PRIVATE for c in range(a, b + 1)}
tables = {
    "punctuation": ranges(c for c in POINTS if len(split.pre_tokenize_str(f"a{chr(c)}b")) == 3),
    "marks": ranges(c for c in POINTS if strip.normalize_str(chr(c)) == ""),
    "removed": ranges(c for c in POINTS if clean.normalize_str(chr(c)) == "" and c not in private),
}
if len(sys.argv) == 1:
    for name, rows in tables.items():
        print(f"static const uint32_t accel__{name}[] = {{")
        cells = [f"0x{a << 8 | b - a:06x}" for a, b in rows]
        for i in range(0, len(cells), 10): print("    " + ", ".join(cells[i:i + 10]) + ",")
        print("};")
    sys.exit()

edges = {0x130, 0x11938, 0x1C89, 0xA7CB, 0xA7CC, 0xA7DC, 0x10D50, 0x16EA0}
spans = PRIVATE + ranges(c for c in POINTS if normalizer(handle_chinese_chars=True).normalize_str(chr(c)) != chr(c))
spans += ranges(c for c in POINTS if clean.normalize_str(chr(c)) == " ")
edges |= {c for a, b in spans for c in (a - 1, a, b, b + 1)}
for rows in tables.values():
    for i, (a, b) in enumerate(rows): edges |= {a - 1, b} if i % 2 else {a, b + 1}
edges = sorted(c for c in edges if 0 < c < 0x110000 and not 0xD800 <= c <= 0xDFFF)
cases = []
for lower, strip, chinese in ((True, None, True), (False, None, True), (False, True, False)):
    t = BertWordPieceTokenizer(sys.argv[2], lowercase=lower, strip_accents=strip, handle_chinese_chars=chinese)
    t.enable_truncation(512)
    for i in range(0, len(edges), 60):
        text = " ".join(f"a{chr(c)}a" for c in edges[i:i + 60])
        options = dict(lowercase=lower, strip_accents=strip, chinese=chinese)
        cases.append(dict(options=options, max_length=512, text=text, pair=None, ids=t.encode(text).ids))
json.dump(cases, open(sys.argv[1], "w", encoding="utf-8"), ensure_ascii=False, separators=(",", ":"))
print(len(cases), "cases of", len(edges), "code points")
