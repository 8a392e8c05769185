/* Connects over a network of choice: cc -I../../include choose.c -o choose && ./choose wlan0 203.0.113.2 80 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hawser.h"

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s NETWORK ADDRESS PORT\n", argv[0]);
        return 2;
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (setsockopt(fd, SOL_HAWSER, HAWSER_NETWORK, argv[1], strlen(argv[1])) < 0) {
        perror(argv[1]);
        return 1;
    }
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &to.sin_addr);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0) {
        perror("connect");
        return 1;
    }
    printf("connected over %s\n", argv[1]);
    close(fd);
    return 0;
}
