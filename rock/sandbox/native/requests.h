/* Who answers which request. */
#ifndef ROCK_REQUESTS_H
#define ROCK_REQUESTS_H

int answer_request(int conn); /* one, in a process of its own; returns its exit code */

#endif
