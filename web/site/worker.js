// In a worker: the engine and its files. In front of this stand makeRootdk, which is what Emscripten made of apps/web,
// and npy.js.
"use strict";

const kFolder = "/files";
let rootdk = null;
let current = null;  // the id of the one under way

const say = message => self.postMessage(message);

const isArray = value => value !== null && typeof value === "object" && "data" in value && "shape" in value;
const isFiles = value => Array.isArray(value) && value.length > 0 && value.every(one => one instanceof Blob);

/** Puts what args hold as files or arrays into `blobs`, and their paths into the args. Several files are a folder. */
function takeFiles(args, blobs) {
  const taken = new Set();
  const out = {};
  const put = (path, data) => {
    taken.add(path);
    blobs.push({name: path, data});
    return path;
  };
  for (const [key, value] of Object.entries(args)) {
    if (value instanceof Blob) {
      const name = (value.name || key).replaceAll("/", "_");
      out[key] = put(taken.has(name) ? `${key}/${name}` : name, value);
    } else if (isFiles(value)) {
      const folder = value[0].webkitRelativePath ? value[0].webkitRelativePath.split("/")[0] : key === "checkpoint" ? "model" : key;
      for (const file of value) put(`${folder}/${(file.name || "file").replaceAll("/", "_")}`, file);
      out[key] = folder;
    } else if (isArray(value)) {
      out[key] = put(`${key}.npy`, npy_of(value));
    } else {
      out[key] = value;
    }
  }
  return out;
}

function call(verb, {...args}) {
  const blobs = [];
  if (verb === "audit" && "file" in args) {  // what the command calls it
    args.checkpoint = args.file;
    delete args.file;
  }
  const given = takeFiles(args, blobs);
  rootdk.FS.mount(rootdk.WORKERFS, {blobs}, kFolder);
  rootdk.FS.chdir(kFolder);
  const request = JSON.stringify({verb, args: given}), bytes = rootdk.lengthBytesUTF8(request) + 1;
  const text = rootdk._malloc(bytes);
  rootdk.stringToUTF8(request, text, bytes);
  try {
    return rootdk.UTF8ToString(rootdk._rootdk_call(text));
  } finally {
    rootdk._free(text);
    rootdk.FS.chdir("/");
    rootdk.FS.unmount(kFolder);
  }
}

async function start(module) {
  rootdk = await makeRootdk({
    instantiateWasm: (imports, done) => {
      WebAssembly.instantiate(module, imports).then(done);
      return {};
    },
    progress: share => say({id: current, progress: share}),
  });
  rootdk.FS.mkdir(kFolder);
}

let started = null;
self.onmessage = async ({data}) => {
  if (data.module) {
    started = start(data.module);
    return started.then(() => say({ready: true}), error => say({notReady: String(error)}));
  }
  await started;
  current = data.id;
  try {
    const answer = call(data.verb, data.args);
    if (data.verb !== "train_checkpoint" || answer.includes("\"error\"")) return say({id: data.id, answer});
    const {file} = JSON.parse(answer), bytes = rootdk.FS.readFile(file);
    rootdk.FS.unlink(file);
    self.postMessage({id: data.id, bytes}, [bytes.buffer]);
  } catch (error) {
    say({id: data.id, failed: error instanceof Error ? error.message : String(error)});
  }
};
