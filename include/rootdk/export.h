// Marks what the shared library exports; everything else stays inside.
#pragma once

#if defined(_WIN32)
#define ROOTDK_API
#else
#define ROOTDK_API __attribute__((visibility("default")))
#endif
