// Arrays as .npy files, for the page and for the worker.

/// {data: Float32Array or Float64Array or numbers, shape}: the bytes of such a file.
function npy_of({data, shape}) {
  const numbers = data instanceof Float32Array || data instanceof Float64Array ? data : Float64Array.from(data);
  const count = shape.reduce((a, b) => a * b, 1);
  if (count !== numbers.length)
    throw new Error(`an array of shape ${shape.join(" × ")} has ${count} numbers, but ${numbers.length} came`);
  const type = numbers instanceof Float32Array ? "<f4" : "<f8";
  const header =
      `{'descr': '${type}', 'fortran_order': False, 'shape': (${shape.join(", ")}${shape.length === 1 ? "," : ""}), }`;
  const length = Math.ceil((10 + header.length + 1) / 64) * 64 - 10;
  const begin = Uint8Array.of(0x93, ...[..."NUMPY"].map((c) => c.charCodeAt(0)), 1, 0, length & 255, length >> 8);
  return new Blob([begin, `${header.padEnd(length - 1)}\n`, numbers]);
}
