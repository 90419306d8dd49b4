// For Emscripten's linker: reads at a place beyond 4 GB of a file, whose upper half its own fd_pread drops.
mergeInto(LibraryManager.library, {
  fd_pread: function (fd, iov, iovcnt, offset_low, offset_high, pnum) {
    const offset = offset_high * 0x100000000 + (offset_low >>> 0);
    try {
      HEAPU32[pnum >> 2] = SYSCALLS.doReadv(SYSCALLS.getStreamFromFD(fd), iov, iovcnt, offset);
      return 0;
    } catch (error) {
      if (!(error instanceof FS.ErrnoError)) throw error;
      return error.errno;
    }
  },
  fd_pread__deps: ["$SYSCALLS", "$FS"],
  fd_pread__sig: "iiiiiii",
});
