/* Mounts by system call: C libraries differ in which of these they wrap, and headers in what they name. */
#ifndef ROCK_CALLS_H
#define ROCK_CALLS_H

#include <stdint.h>

enum { CALL_OPEN_TREE = 428, CALL_MOVE_MOUNT = 429, CALL_MOUNT_SETATTR = 442 };
#ifndef MOUNT_ATTR_RDONLY
#define MOUNT_ATTR_RDONLY 0x1
#define MOUNT_ATTR_NOSUID 0x2
#define MOUNT_ATTR_NODEV 0x4
#endif
#ifndef MOUNT_ATTR_IDMAP
#define MOUNT_ATTR_IDMAP 0x100000
#endif
#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#endif
#ifndef OPEN_TREE_CLOEXEC
#define OPEN_TREE_CLOEXEC O_CLOEXEC
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
#define MOVE_FROM_EMPTY_PATH 0x4
#define MOVE_TO_EMPTY_PATH 0x40
struct mount_attributes {
    uint64_t set, clear, propagation, userns;
};

#endif
