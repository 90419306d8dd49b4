// The engine: rootdk in WebAssembly, in a worker of its own. What a call gives is what `rootdk VERB --json` prints.

/** What the command would have said in one line. */
class EngineError extends Error {
  get name() { return "EngineError"; }
}

class Engine {
  #worker = null;
  #ready = null;
  #calls = new Map();  // by id
  #last = 0;

  /** Starts the worker, if there is none, and resolves when it can answer. */
  get ready() {
    this.#ready ??= this.#start();
    return this.#ready;
  }

  /**
   * `args` are the command's options in snake_case; files and arrays ({data, shape}) stand where the command has paths. Rejects with an
   * EngineError where the command refuses, and with an AbortError when the signal ends it; then the worker goes, and with it the runs in it.
   */
  async call(verb, args = {}, {progress = null, signal = null} = {}) {
    signal?.throwIfAborted();
    await this.ready;
    signal?.throwIfAborted();
    return new Promise((resolve, reject) => {
      const id = ++this.#last;
      const onAbort = () => {
        if (this.#calls.has(id)) this.#end(signal.reason);
      };
      this.#calls.set(id, {resolve, reject, progress, done: () => signal?.removeEventListener("abort", onAbort)});
      signal?.addEventListener("abort", onAbort);
      this.#worker.postMessage({id, verb, args});
    });
  }

  /** For sliders: a function like call, of which at most one call is under way and one waits. One that a newer replaced gives null. */
  newest() {
    let running = false;
    let waiting = null;
    const run = async ({verb, args, options, resolve, reject}) => {
      running = true;
      try {
        resolve(await this.call(verb, args, options));
      } catch (error) {
        reject(error);
      }
      running = false;
      if (waiting) {
        const next = waiting;
        waiting = null;
        run(next);
      }
    };
    return (verb, args, options) => new Promise((resolve, reject) => {
      const call = {verb, args, options, resolve, reject};
      if (!running) return run(call);
      waiting?.resolve(null);
      waiting = call;
    });
  }

  /** Ends the worker; the next call starts a new one. */
  close() {
    this.#end(new DOMException("The engine was closed", "AbortError"));
  }

  async #start() {
    if (!document.getElementById("engine-worker")) Engine.want_server();
    const worker = new Worker(await Engine.#script());
    this.#worker = worker;
    await new Promise((resolve, reject) => {
      worker.onerror = event => {
        const error = new EngineError(event.message || "the engine could not be started");
        reject(error);
        if (this.#worker === worker) this.#end(error);
      };
      worker.onmessage = ({data}) => {
        if (data.ready) resolve();
        else if (data.notReady) worker.onerror({message: data.notReady});
        else this.#heard(data);
      };
      Engine.#module().then(module => worker.postMessage({module}), reject);
    });
  }

  #end(reason) {
    this.#worker?.terminate();
    this.#worker = this.#ready = null;
    const calls = [...this.#calls.values()];
    this.#calls.clear();
    for (const call of calls) {
      call.done();
      call.reject(reason);
    }
  }

  #heard({id, progress, answer, bytes, failed}) {
    const call = this.#calls.get(id);
    if (!call) return;
    if (progress !== undefined) {
      call.progress?.(progress);
      return;
    }
    this.#calls.delete(id);
    call.done();
    if (failed !== undefined) return call.reject(new EngineError(failed));
    if (bytes) return call.resolve(bytes);
    const result = JSON.parse(answer);
    if (typeof result.error === "string" && Object.keys(result).length === 1) call.reject(new EngineError(result.error));
    else call.resolve(result);
  }

  /** Files beside a page that was opened from a disk are strangers to it. */
  static want_server() {
    if (location.protocol === "file:")
      throw new EngineError("From a disk this page can load nothing that lies beside it: open rootdk.html, which has " +
                            "everything inside, or put the folder behind a web server.");
  }

  // Both are made once, for all engines of the page. In the page that is one file they lie in it; otherwise beside it.
  static #scriptUrl = null;
  static #script() {
    const inside = document.getElementById("engine-worker");
    Engine.#scriptUrl ??= inside ? URL.createObjectURL(new Blob([inside.textContent], {type: "text/javascript"})) : "worker.js";
    return Engine.#scriptUrl;
  }

  static #compiled = null;
  static #module() {
    Engine.#compiled ??= (async () => {
      const inside = document.getElementById("engine-wasm");
      if (!inside) return WebAssembly.compile(await (await fetch("rootdk.wasm")).arrayBuffer());
      const packed = Uint8Array.from(atob(inside.textContent.trim()), c => c.charCodeAt(0));
      const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      return WebAssembly.compile(await new Response(unpacked).arrayBuffer());
    })();
    return Engine.#compiled;
  }
}

/** For the console: `await new rootdk.Engine().call("explain", {scores: [14, 10, 12], dk: 64})`. */
globalThis.rootdk = {Engine, EngineError};
