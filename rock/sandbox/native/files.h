/* Single files, directories and listening sockets; and paths, for whoever else follows some. */
#ifndef ROCK_FILES_H
#define ROCK_FILES_H

#include "account.h"
#include "wire.h"

int handle_read(int conn, const struct frame *frame);
int handle_write(int conn, const struct frame *frame);
int handle_mkdir(int conn, const struct frame *frame);
int handle_listen(int conn, const struct frame *frame);

int make_parents(const char *path, const struct account *owner); /* a directory fd, or -1 */
const char *last_component(const char *path);
int usable_name(const char *name); /* not "", "." or ".." */
int fail_file(int conn, int error);

#endif
