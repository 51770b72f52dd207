// Command certmanager is cert-manager without what the tests do not need: its controllers of Certificates and Issuers, for
// self-signed certificates and those of a CA, and its CA injector for webhooks. Its own programs are Go modules that the proxy does
// not serve, so this one starts the controllers that they start; the validating webhook of cert-manager is not among them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	requestsca "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	"github.com/cert-manager/cert-manager/pkg/controller/issuers"
	"github.com/cert-manager/cert-manager/pkg/util"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/cert-manager/cert-manager/pkg/api"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

// The controllers, by the names under which their packages register them.
var controllers = []string{
	approver.ControllerName, requestsca.CRControllerName, selfsigned.CRControllerName, issuing.ControllerName,
	keymanager.ControllerName, readiness.ControllerName, requestmanager.ControllerName, revisionmanager.ControllerName,
	trigger.ControllerName, issuers.ControllerName,
}

func main() {
	// controller-runtime has made the flag --kubeconfig.
	flag.Parse()
	ctrl.SetLogger(klog.Background())
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "certmanager:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if err := startControllers(ctx, group); err != nil {
		return fmt.Errorf("controllers: %w", err)
	}
	if err := startInjector(ctx, group); err != nil {
		return fmt.Errorf("CA injector: %w", err)
	}
	return group.Wait()
}

func startControllers(ctx context.Context, group *errgroup.Group) error {
	options := controller.ContextOptions{
		Kubeconfig: flag.Lookup("kubeconfig").Value.String(),
		CertificateOptions: controller.CertificateOptions{
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
	}
	factory, err := controller.NewContextFactory(ctx, options)
	if err != nil {
		return err
	}
	for _, name := range controllers {
		made, err := controller.Known()[name](factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		group.Go(func() error { return made.Run(1, ctx) })
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	return nil
}

func startInjector(ctx context.Context, group *errgroup.Group) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	if err := api.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	// It applies under the name in front of the slash.
	config = util.RestConfigWithUserAgent(config, "cainjector")
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme.Scheme,
		Metrics: server.Options{BindAddress: "0"},
		// It caches the metadata of Secrets only.
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
	})
	if err != nil {
		return err
	}
	setup := cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor:        map[string]bool{cainjector.ValidatingWebhookConfigurationName: true},
	}
	if err := cainjector.RegisterAllInjectors(ctx, manager, setup); err != nil {
		return err
	}
	group.Go(func() error { return manager.Start(ctx) })
	return nil
}
