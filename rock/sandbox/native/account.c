/* Users as the sandbox knows them.
 *
 * Its /etc/passwd and /etc/group are read directly: a static program cannot load name-service
 * modules, and must not run code from the image. Accepted forms: "" (stay as you are), NAME, UID,
 * and either with ":GROUP" or ":GID".
 */
#define _GNU_SOURCE
#include "account.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_DATABASE_BYTES (1024 * 1024)

/* A whole regular file as a string, or "" : the file belongs to the sandbox and can be anything. */
static char *read_database(const char *path) {
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat info;
    char *text = calloc(1, MAX_DATABASE_BYTES + 1);
    if (!text) _exit(70);
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        size_t size = 0;
        ssize_t got;
        while (size < MAX_DATABASE_BYTES &&
               (got = read(fd, text + size, MAX_DATABASE_BYTES - size)) > 0)
            size += (size_t)got;
    }
    if (fd >= 0) close(fd);
    return text;
}

static int is_number(const char *text, unsigned long *value) {
    if (!*text || strspn(text, "0123456789") != strlen(text) || strlen(text) > 10) return 0;
    *value = strtoul(text, NULL, 10);
    return *value < 0xffffffffUL;
}

/* Cuts `line` at its colons; returns how many of `want` fields there were. */
static int split_fields(char *line, char **fields, int want) {
    int count = 0;
    while (count < want && line) fields[count++] = strsep(&line, ":");
    return count;
}

static int find_user(const char *name, struct account *account, char **login) {
    unsigned long number = 0, value;
    int numeric = is_number(name, &number), found = 0;
    char *rest = read_database("/etc/passwd"), *line, *fields[4];
    while (!found && (line = strsep(&rest, "\n"))) {
        if (split_fields(line, fields, 4) < 4 || !is_number(fields[2], &value)) continue;
        if (strcmp(fields[0], name) && !(numeric && value == number)) continue;
        account->uid = (uid_t)value;
        account->gid = is_number(fields[3], &value) ? (gid_t)value : (gid_t)account->uid;
        *login = fields[0];
        found = 1;
    }
    if (found) return 0;
    if (!numeric && strcmp(name, "root")) return ENOENT; /* every system has a root, named or not */
    account->uid = (uid_t)number;
    account->gid = (gid_t)number;
    return 0;
}

/* Sets the named group, if there is one, and collects the groups that list `login`. */
static int find_groups(const char *group, const char *login, struct account *account) {
    unsigned long number;
    int found = !group;
    if (group && is_number(group, &number)) {
        account->gid = (gid_t)number;
        found = 1;
    }
    char *rest = read_database("/etc/group"), *line, *fields[4], *member;
    while ((line = strsep(&rest, "\n"))) {
        int count = split_fields(line, fields, 4);
        if (count < 3 || !is_number(fields[2], &number)) continue;
        if (!found && !strcmp(fields[0], group)) {
            account->gid = (gid_t)number;
            found = 1;
        }
        char *members = count == 4 ? fields[3] : NULL;
        while (login && (member = strsep(&members, ","))) {
            if (!strcmp(member, login) && account->group_count < 64)
                account->groups[account->group_count++] = (gid_t)number;
        }
    }
    return found ? 0 : ENOENT;
}

int find_account(const char *name, struct account *account) {
    memset(account, 0, sizeof *account);
    if (!*name) return 0;
    char *login = NULL, *user = strdup(name);
    if (!user) return ENOMEM;
    char *group = strchr(user, ':');
    if (group) *group++ = 0;
    account->given = 1;
    int error = find_user(user, account, &login);
    return error ? error : find_groups(group, login, account);
}

int become_account(const struct account *account) {
    if (!account->given) return 0;
    /* In a namespace with a single id the kernel refuses setgroups; there is nothing to shed. */
    if (setgroups(account->group_count, account->groups) && getuid() != account->uid) return errno;
    if (setresgid(account->gid, account->gid, account->gid)) return errno;
    return setresuid(account->uid, account->uid, account->uid) ? errno : 0;
}

int own(int fd, const struct account *account) {
    if (!account->given) return 0;
    if (account->uid == geteuid() && account->gid == getegid()) return 0;
    return fchownat(fd, "", account->uid, account->gid, AT_EMPTY_PATH);
}
