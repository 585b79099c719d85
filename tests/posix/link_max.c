/* Preloaded into pjdfstest: tells the largest link count of a FUSE file system.
 *
 * The C library knows it by the type of the file system and says 127 for any that it does not know,
 * which the suite takes as a reason to leave its case of EMLINK out. The value is that of
 * docs/limits.md (LINKS_MAX), from the environment; all else is the library's answer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

long pathconf(const char *path, int name)
{
    static long (*real)(const char *, int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "pathconf");
    long value = real(path, name);
    const char *text = getenv("ZONAL_LINK_MAX");
    if (name == _PC_LINK_MAX && value == 127 && text)
        return atol(text);
    return value;
}
