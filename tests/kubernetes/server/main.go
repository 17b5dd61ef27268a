// Command kubeserver is kube-apiserver and etcd in one binary, for tests on loopback.
// There is no kubelet, scheduler or controller: a test writes pod status itself.
// etcd and the API server run as two processes, so that a test can freeze, kill or restart either alone.
//
//	kubeserver etcd DIR URL         serve a one-member etcd with its data in DIR
//	kubeserver compact URL          drop the history of that etcd, so that old watch versions are gone
//	kubeserver apiserver FLAGS...   run kube-apiserver with its own flags
package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kubeserver:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("one of etcd, compact, apiserver is needed")
	}
	switch command, rest := args[0], args[1:]; {
	case command == "etcd" && len(rest) == 2:
		return serveEtcd(rest[0], rest[1])
	case command == "compact" && len(rest) == 1:
		return compact(rest[0])
	case command == "apiserver":
		apiserver := app.NewAPIServerCommand()
		apiserver.SetArgs(rest)
		os.Exit(cli.Run(apiserver))
	}
	return fmt.Errorf("wrong arguments: %q", args)
}

func serveEtcd(dir, address string) error {
	listen, err := url.Parse(address)
	if err != nil {
		return err
	}
	config := embed.NewConfig()
	config.Dir = dir
	config.LogLevel = "warn"
	config.UnsafeNoFsync = true // nothing outlives the test
	config.ListenClientUrls = []url.URL{*listen}
	config.AdvertiseClientUrls = config.ListenClientUrls
	// One member has no peers to call; the listener must exist all the same.
	config.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.AdvertisePeerUrls = config.ListenPeerUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer server.Close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	select {
	case err := <-server.Err():
		return err
	case <-signals:
		return nil
	}
}

func compact(address string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	// A write of our own makes sure that there is a revision later than any that a watch has seen.
	written, err := client.Put(ctx, "/kubeserver/compacted", time.Now().String())
	if err != nil {
		return err
	}
	_, err = client.Compact(ctx, written.Header.Revision, clientv3.WithCompactPhysical())
	return err
}
