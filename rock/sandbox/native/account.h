/* Users of the sandbox, by its own /etc/passwd. */
#ifndef ROCK_ACCOUNT_H
#define ROCK_ACCOUNT_H

#include <stddef.h>
#include <sys/types.h>

struct account {
    int given; /* 0: keep the helper's identity */
    uid_t uid;
    gid_t gid;
    gid_t groups[64];
    size_t group_count;
};
int find_account(const char *name, struct account *account); /* 0, or an errno */
int become_account(const struct account *account);           /* 0, or an errno */
int own(int fd, const struct account *account);              /* chown, if that changes anything */

#endif
