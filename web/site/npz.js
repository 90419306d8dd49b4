// A deflated .npz as one that is not: the engine in the page is without zlib, but the browser can inflate.

const kStored = 0, kDeflated = 8, kBeyond = 0xffffffff;  // what stands where a number needs zip64

/// The entries of a zip, as its directory lists them; null where that is not found, or is of zip64.
async function zip_entries(file) {
  const tail = new DataView(await file.slice(-(22 + 65535)).arrayBuffer());
  let end = tail.byteLength - 22;
  while (end >= 0 && tail.getUint32(end, true) !== 0x06054b50) --end;
  if (end < 0) return null;
  const count = tail.getUint16(end + 10, true);
  const size = tail.getUint32(end + 12, true), offset = tail.getUint32(end + 16, true);
  const list = new DataView(await file.slice(offset, offset + size).arrayBuffer());
  const entries = [];
  for (let at = 0; entries.length < count;) {
    if (at + 46 > list.byteLength || list.getUint32(at, true) !== 0x02014b50) return null;
    const method = list.getUint16(at + 10, true);
    const [crc, packed, bytes, start] = [16, 20, 24, 42].map((place) => list.getUint32(at + place, true));
    const [length, extra, comment] = [28, 30, 32].map((place) => list.getUint16(at + place, true));
    if ([packed, bytes, start].includes(kBeyond) || at + 46 + length > list.byteLength) return null;
    entries.push({method, crc, packed, bytes, start, name: new Uint8Array(list.buffer, at + 46, length)});
    at += 46 + length + extra + comment;
  }
  return entries;
}

const crc_step = (sum) => (sum & 1 ? (sum >>> 1) ^ 0xedb88320 : sum >>> 1);
const crc_table = Uint32Array.from({length: 256}, (_, byte) => d3.range(8).reduce(crc_step, byte));

/// What is packed, as a Blob of so many bytes; null where it is of another length or checksum.
async function inflated({packed, bytes, crc}) {
  const reader = packed.stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const parts = [];
  let left = bytes, sum = -1;
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return left === 0 && (~sum >>> 0) === crc ? new Blob(parts) : null;
    left -= value.length;
    if (left < 0) return null;
    for (const byte of value) sum = crc_table[(sum ^ byte) & 255] ^ (sum >>> 8);
    parts.push(value);
  }
}

/// The same arrays, none of them deflated. What is no such file stays as it is: the engine says what is wrong with it.
async function stored_npz(file) {
  const entries = await zip_entries(file);
  if (!entries || !entries.some((entry) => entry.method === kDeflated)) return file;
  const parts = [], directory = [];
  let at = 0, listed = 0;
  for (const {method, crc, packed, bytes, start, name} of entries) {
    const local = new DataView(await file.slice(start, start + 30).arrayBuffer());
    if (local.byteLength < 30 || ![kStored, kDeflated].includes(method)) return file;
    const first = start + 30 + local.getUint16(26, true) + local.getUint16(28, true);
    const data = file.slice(first, first + packed);
    const content = method === kStored ? data : await inflated({packed: data, bytes, crc}).catch(() => null);
    if (!content)
      throw new EngineError(`${file.name}: ${new TextDecoder().decode(name)} is damaged and cannot be unpacked`);
    // In front of its data and in the directory the same is said of an entry: version, flags, method, time, date, …
    const sizes = [[4, crc], [4, bytes], [4, bytes], [2, name.length], [2, 0]];
    const fields = [[2, 20], [2, 0], [2, kStored], [2, 0], [2, 33], ...sizes];
    parts.push(little_endian([[4, 0x04034b50], ...fields]), name, content);
    directory.push(little_endian([[4, 0x02014b50], [2, 20], ...fields, [2, 0], [2, 0], [2, 0], [4, 0], [4, at]]), name);
    at += 30 + name.length + bytes;
    listed += 46 + name.length;
  }
  if (at + listed >= kBeyond) return file;
  const count = [2, entries.length];
  const end = little_endian([[4, 0x06054b50], [4, 0], count, count, [4, listed], [4, at], [2, 0]]);
  return new File([...parts, ...directory, end], file.name);
}

/// numbers: [bytes, value].
function little_endian(numbers) {
  const out = new DataView(new ArrayBuffer(d3.sum(numbers, ([bytes]) => bytes)));
  let at = 0;
  for (const [bytes, value] of numbers) {
    if (bytes === 2) out.setUint16(at, value, true);
    else out.setUint32(at, value, true);
    at += bytes;
  }
  return out;
}
