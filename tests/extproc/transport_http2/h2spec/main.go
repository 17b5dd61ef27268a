// h2spec as a program of three arguments: host, port, path. Strict tests are included.
package main

import (
	"os"
	"strconv"
	"time"

	"github.com/summerwind/h2spec"
	"github.com/summerwind/h2spec/config"
)

func main() {
	port, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	passed, err := h2spec.Run(&config.Config{
		Host: os.Args[1], Port: port, Path: os.Args[3], Timeout: 5 * time.Second, MaxHeaderLen: 4000, Strict: true,
	})
	if err != nil {
		panic(err)
	}
	if !passed {
		os.Exit(1)
	}
}
