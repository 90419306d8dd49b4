#!/usr/bin/env python3
"""Makes web/site/sample-trained.safetensors and sample-untrained.safetensors anew: trains the model
(sample_checkpoint.cc, over build/release) and keeps of its weights what an audit reads, in f16. Half a minute; the same
bits each time on the same machine.
"""

import json
import pathlib
import struct
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEPT = ("q_proj", "k_proj", "input_layernorm", "embed_tokens")


def halved(path, out):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = {name: text for name, text in header.pop("__metadata__").items() if not name.startswith("train.")}
    kept, body = {"__metadata__": metadata}, b""
    for name, tensor in header.items():
        if not any(part in name for part in KEPT):
            continue
        begin, end = (8 + length + offset for offset in tensor["data_offsets"])
        values = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
        piece = struct.pack(f"<{len(values)}e", *values)
        kept[name] = {"dtype": "F16", "shape": tensor["shape"], "data_offsets": [len(body), len(body) + len(piece)]}
        body += piece
    text = json.dumps(kept, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    out.write_bytes(struct.pack("<Q", len(text)) + text + body)
    print(f"{out.name}: {out.stat().st_size} bytes")


def main():
    libraries = ROOT / "build/release/lib"
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/train"
        source = pathlib.Path(__file__).with_suffix(".cc")
        subprocess.run(
            [
                "c++",
                "-std=c++20",
                "-O2",
                f"-I{ROOT}/include",
                source,
                f"-L{libraries}",
                f"-Wl,-rpath,{libraries}",
                "-lrootdk_lab",
                "-lrootdk_nn",
                "-lrootdk",
                "-o",
                program,
            ],
            check=True,
        )
        subprocess.run([program, folder], check=True)
        for name in ("trained", "untrained"):
            halved(pathlib.Path(folder, f"{name}.safetensors"), ROOT / f"web/site/sample-{name}.safetensors")


if __name__ == "__main__":
    main()
