/* How the making of a rootless sandbox ends if a step of it fails. */
#ifndef ROCK_FAILING_H
#define ROCK_FAILING_H

void report_to(int control); /* where the harness hears of it */
void fail_step(const char *step, const char *detail) __attribute__((noreturn)); /* with errno */

#endif
