/* The root directory of a rootless sandbox, step by step. */
#ifndef ROCK_MOUNTS_H
#define ROCK_MOUNTS_H

#include <stdint.h>

struct step {
    uint8_t kind; /* one of step_kind, mounts.c */
    char *path;   /* inside the sandbox */
    char *text;   /* source, link destination or content, by kind */
    uint32_t mode;
    int fd;       /* source opened before the old root goes away */
    int detached; /* fd is a mount of its own, in nobody's tree yet */
};
void map_image_owners(struct step *steps, uint32_t count, int user_namespace);
void open_sources(struct step *steps, uint32_t count, int bind_now);
void build_root(struct step *steps, uint32_t count, uint64_t bytes, uint64_t inodes);

#endif
