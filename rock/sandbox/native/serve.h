/* The server: connections in, a process for each. */
#ifndef ROCK_SERVE_H
#define ROCK_SERVE_H

#include "wire.h"

#include <stdint.h>
#include <sys/types.h>

typedef int answering(int conn); /* in a process of its own; returns its exit code */
struct serving {
    answering *answer;
    int listener;        /* a listening unix socket, or NO_FD */
    int control;         /* connections arrive as descriptors; its end is the owner's end; or NO_FD */
    int64_t lifetime_ns; /* 0: none */
    int64_t lease_ns;    /* end this long after the last RENEW; 0: no lease */
    const char *socket_path; /* unlinked at the end, or NULL */
};
int serve(const struct serving *serving);
int is_handler(pid_t pid);
int handle_renew(int conn, const struct frame *frame);
extern int is_init; /* whether this is, or serves, PID 1 of a namespace: only then all may be killed */

#endif
