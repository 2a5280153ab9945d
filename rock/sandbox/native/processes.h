/* Time, children, and ending them. */
#ifndef ROCK_PROCESSES_H
#define ROCK_PROCESSES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

int64_t now_ns(void);
void nap_ns(long nanoseconds);
int signal_children(const pid_t *spared, size_t spared_count);
size_t list_descendants(pid_t root, pid_t *found, size_t room, const pid_t *spared,
                        size_t spared_count); /* without the spared ones and what is below them */
int end_descendants(int64_t bound_ns, pid_t leader, int *leader_status); /* how many tries failed */
void keep_oom_counter(int fd); /* where oom_kills() looks, if this sandbox cannot see its own */
long long oom_kills(void); /* of this cgroup so far, or -1 when it cannot be known */

#endif
