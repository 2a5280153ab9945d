/* What every command loses before it starts. */
#ifndef ROCK_HARDEN_H
#define ROCK_HARDEN_H

void drop_bounding_set(void);
int drop_privileges(void); /* 0, or an errno: no new privileges, no capabilities, no odd calls */

#endif
