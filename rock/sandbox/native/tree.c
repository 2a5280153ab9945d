/* Whole trees, streamed entry by entry over the connection.
 *
 * Going in, an entry replaces what is in its place, and no link below the target is followed.
 * Coming out, links are sent as links; sockets, pipes and devices are left out.
 */
#define _GNU_SOURCE
#include "tree.h"

#include "account.h"
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_DEPTH 200
#define CHUNK_BYTES (256 * 1024)

struct late_mode {
    struct late_mode *next;
    char *path;
    mode_t mode;
};
struct incoming {
    int root; /* the directory that holds the target */
    const char *name;
    struct account owner;
    struct late_mode *modes; /* newest first, so that a directory closes after what it holds */
    int file;
    mode_t file_mode;
};

/* `path` below the target as seen from `root`: the target's name, then each part, none of it "..". */
static char *below(const struct incoming *in, const char *path) {
    char *full = malloc(strlen(in->name) + strlen(path) + 2), *copy = strdup(path), *part;
    if (!full || !copy) _exit(70);
    strcpy(full, in->name);
    if (!*path) return full;
    while ((part = strsep(&copy, "/"))) {
        if (!usable_name(part)) {
            errno = EINVAL;
            return NULL;
        }
        strcat(strcat(full, "/"), part);
    }
    return full;
}

/* The directory of the last part of `full`, following no link; `full` is cut apart. */
static int parent_of(const struct incoming *in, char *full, char **last) {
    int fd = dup(in->root);
    *last = strsep(&full, "/");
    while (fd >= 0 && full) {
        int next = openat(fd, *last, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int error = errno;
        close(fd);
        errno = error;
        fd = next;
        *last = strsep(&full, "/");
    }
    return fd;
}

static int put_dir(struct incoming *in, int parent, const char *name, const char *path,
                   mode_t mode) {
    struct stat info;
    if (mkdirat(parent, name, 0700)) {
        if (errno != EEXIST || fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW)) return -1;
        if (!S_ISDIR(info.st_mode) &&
            (unlinkat(parent, name, 0) || mkdirat(parent, name, 0700)))
            return -1;
    }
    struct late_mode *late = malloc(sizeof *late);
    if (!late) return -1;
    *late = (struct late_mode){in->modes, strdup(path), mode};
    in->modes = late;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -1;
    int failed = own(fd, &in->owner);
    close(fd);
    return failed;
}

static int make_room(int parent, const char *name) {
    return unlinkat(parent, name, 0) && errno != ENOENT ? -1 : 0;
}

static int put_link(const struct incoming *in, int parent, const char *name, const char *to) {
    if (make_room(parent, name) || symlinkat(to, parent, name)) return -1;
    int fd = openat(parent, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -1;
    int failed = own(fd, &in->owner);
    close(fd);
    return failed;
}

static int put_file(struct incoming *in, int parent, const char *name, mode_t mode) {
    if (make_room(parent, name)) return -1;
    in->file = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    in->file_mode = mode;
    return in->file < 0 ? -1 : 0;
}

static int close_file(struct incoming *in) {
    if (in->file < 0) return 0;
    int failed = own(in->file, &in->owner) || fchmod(in->file, in->file_mode);
    close(in->file);
    in->file = -1;
    return failed ? -1 : 0;
}

static int put_entry(struct incoming *in, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    if (frame->type == ENTRY_DATA)
        return in->file < 0 ? (errno = EINVAL, -1) : write_all(in->file, frame->body, frame->size);
    if (close_file(in)) return -1;
    char *path = get_text(&reader), *full = below(in, path), *name;
    char *to = frame->type == ENTRY_LINK ? get_text(&reader) : NULL;
    mode_t mode = to ? 0 : get_u32(&reader) & 0777;
    if (reader.bad || !full) return errno = EINVAL, -1;
    int parent = parent_of(in, full, &name), failed = -1;
    if (parent < 0) return -1;
    if (frame->type == ENTRY_DIR) failed = put_dir(in, parent, name, path, mode);
    else if (frame->type == ENTRY_FILE) failed = put_file(in, parent, name, mode);
    else if (to) failed = put_link(in, parent, name, to);
    else errno = EINVAL;
    int error = errno;
    close(parent);
    errno = error;
    free(path);
    free(full);
    return failed;
}

static int finish(struct incoming *in) {
    if (close_file(in)) return -1;
    for (struct late_mode *late = in->modes; late; late = late->next) {
        char *name, *full = below(in, late->path);
        int parent = full ? parent_of(in, full, &name) : -1;
        int fd = parent < 0 ? -1 : openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
        if (fd < 0 || fchmod(fd, late->mode)) return -1;
        close(fd);
        close(parent);
    }
    return 0;
}

int handle_put(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    struct incoming in = {.file = -1};
    struct frame entry = {0};
    char *target = get_text(&reader);
    int error = find_account(get_text(&reader), &in.owner);
    in.name = last_component(target);
    if (error) return reply_error(conn, STAGE_USER, error, "no such user") ? 1 : 0;
    if (reader.bad || !usable_name(in.name)) return fail_file(conn, EINVAL);
    in.root = make_parents(target, &in.owner);
    if (in.root < 0) return fail_file(conn, errno);
    while (read_frame(conn, &entry) > 0) {
        if (entry.type == REQ_COMMIT) {
            if (finish(&in)) return fail_file(conn, errno);
            return send_frame(conn, REP_DONE, NULL, 0, NO_FD) ? 1 : 0;
        }
        if (put_entry(&in, &entry)) return fail_file(conn, errno);
        free(entry.body);
    }
    return 1; /* the client left */
}

/* Sends one entry. Its path is as long as the tree is deep, so it does not fit a `struct writer`. */
static int send_entry(int conn, unsigned char type, const char *path, mode_t mode,
                      const char *to) {
    size_t path_size = strlen(path), to_size = to ? strlen(to) : 0, size = 0;
    unsigned char *body = malloc(path_size + to_size + 8);
    if (!body) return -1;
    uint32_t words[2] = {(uint32_t)path_size, to ? (uint32_t)to_size : (uint32_t)mode & 0777};
    for (int word = 0; word < 2; word++) {
        for (int i = 0; i < 4; i++) body[size++] = (unsigned char)(words[word] >> (8 * i));
        if (word == 0) memcpy(body + size, path, path_size), size += path_size;
    }
    if (to) memcpy(body + size, to, to_size), size += to_size;
    int failed = send_frame(conn, type, body, size, NO_FD);
    free(body);
    return failed;
}

static int get_file(int conn, int fd, const char *path, mode_t mode) {
    static unsigned char chunk[CHUNK_BYTES];
    ssize_t size;
    if (send_entry(conn, ENTRY_FILE, path, mode, NULL)) return -1;
    while ((size = read(fd, chunk, sizeof chunk)) > 0)
        if (send_frame(conn, ENTRY_DATA, chunk, (size_t)size, NO_FD)) return -1;
    return size < 0 ? -1 : 0;
}

static int get_link(int conn, int parent, const char *name, const char *path) {
    char to[4096 + 1];
    ssize_t size = readlinkat(parent, name, to, sizeof to - 1);
    if (size < 0) return -1;
    to[size] = 0;
    return send_entry(conn, ENTRY_LINK, path, 0, to);
}

static int get_entry(int conn, int parent, const char *name, const char *path, int depth);

static int get_dir(int conn, int fd, const char *path, int depth) {
    DIR *dir = fdopendir(fd);
    struct dirent *entry;
    int failed = 0;
    if (!dir) return -1;
    if (depth > MAX_DEPTH) return errno = ENAMETOOLONG, -1;
    while (!failed && (errno = 0, entry = readdir(dir))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        char *longer = malloc(strlen(path) + strlen(entry->d_name) + 2);
        if (!longer) return -1;
        strcpy(longer, path);
        if (*path) strcat(longer, "/");
        strcat(longer, entry->d_name);
        failed = get_entry(conn, dirfd(dir), entry->d_name, longer, depth + 1);
        free(longer);
    }
    int error = errno;
    closedir(dir);
    errno = error;
    return failed || error ? -1 : 0;
}

/* Opens what may be waited for only in a way that does not wait, and looks before it reads. */
static int get_opened(int conn, int fd, const char *path, int depth) {
    struct stat info;
    int failed = fstat(fd, &info);
    if (!failed && S_ISDIR(info.st_mode)) {
        failed = send_entry(conn, ENTRY_DIR, path, info.st_mode, NULL);
        return failed ? failed : get_dir(conn, fd, path, depth);
    }
    if (!failed && S_ISREG(info.st_mode)) failed = get_file(conn, fd, path, info.st_mode);
    int error = errno;
    close(fd);
    errno = error;
    return failed;
}

static int get_entry(int conn, int parent, const char *name, const char *path, int depth) {
    struct stat info;
    if (fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW)) return errno == ENOENT ? 0 : -1;
    if (S_ISLNK(info.st_mode)) return get_link(conn, parent, name, path);
    if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) return 0;
    int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT || errno == ELOOP ? 0 : -1;
    return get_opened(conn, fd, path, depth);
}

int handle_get(int conn, const struct frame *frame) {
    struct reader reader = reader_of(frame);
    char *source = get_text(&reader);
    struct stat info;
    if (reader.bad) return fail_file(conn, EINVAL);
    int fd = open(source, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info)) return fail_file(conn, errno);
    if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) return fail_file(conn, EINVAL);
    if (get_opened(conn, fd, "", 0)) return fail_file(conn, errno);
    return send_frame(conn, REP_DONE, NULL, 0, NO_FD) ? 1 : 0;
}
