/* Another root directory in place of the present one. */
#ifndef ROCK_REPLACE_H
#define ROCK_REPLACE_H

#include <stddef.h>

#define MAX_MOUNTS 512
struct taken_mount {
    int tree; /* a mount that is nowhere yet, with all below it */
    const char *path;
};
struct taken_mounts {
    struct taken_mount mounts[MAX_MOUNTS];
    size_t count;
};
/* Each returns NULL, or what failed, with errno set. */
const char *take_mounts(int mountinfo, struct taken_mounts *taken);
const char *furnish(int root, const struct taken_mounts *taken);
const char *put_root(int root);

#endif
