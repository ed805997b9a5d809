/* Before the C library: the locks of a network file system. FILE_LOCKS is "none", as without a lock service (open(2) and
 * all else work), or "local": each process has what it asks for, as two machines whose mounts keep locks to themselves. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int flock(int file, int operation)
{
    const char *locks = getenv("FILE_LOCKS");
    (void)file, (void)operation;
    if (locks && !strcmp(locks, "local"))
        return 0;
    errno = ENOLCK;
    return -1;
}
