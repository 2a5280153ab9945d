/* How the making of a rootless sandbox ends if a step of it fails: the harness gets "STEP: reason" over
 * the control socket, and the process ends.
 */
#define _GNU_SOURCE
#include "failing.h"

#include "wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int report_fd = NO_FD;

void report_to(int control) {
    report_fd = control;
}

void fail_step(const char *step, const char *detail) {
    char text[1024];
    int size = snprintf(text, sizeof text, "%s%s%s: %s", step, *detail ? " " : "", detail,
                        strerror(errno));
    if (size > (int)sizeof text) size = sizeof text;
    send(report_fd, text, (size_t)size, MSG_NOSIGNAL);
    _exit(71);
}
