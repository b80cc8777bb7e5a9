<?php
// Sends mail with Symfony Mailer, which is Laravel's, too: by the messages of Mailgun (mailgun+api) and by whole ones
// (mailgun+https). The subject of each mail names its case. It prints a line for each case.
require '/usr/share/php/Symfony/Component/Mailer/autoload.php';
require '/usr/share/php/Symfony/Component/Mailer/Bridge/Mailgun/autoload.php';
require '/usr/share/php/Symfony/Component/HttpClient/autoload.php';

use Symfony\Component\HttpClient\HttpClient;
use Symfony\Component\Mailer\Bridge\Mailgun\Transport\MailgunTransportFactory;
use Symfony\Component\Mailer\Mailer;
use Symfony\Component\Mailer\Transport\Dsn;
use Symfony\Component\Mime\Address;
use Symfony\Component\Mime\Email;

$domain = getenv('DOMAIN');
$server = parse_url(getenv('URL'));
$http = HttpClient::create(['cafile' => getenv('CA')]);
foreach (['mailgun+api', 'mailgun+https'] as $scheme) {
    $dsn = new Dsn($scheme, $server['host'], getenv('KEY'), $domain, $server['port']);
    $transport = (new MailgunTransportFactory(null, $http))->create($dsn);
    $mail = (new Email())
        ->from(new Address("shop@$domain", 'Größe & Co'))
        ->to(new Address('symfony@demo.test', 'Ann'), 'bob@demo.test')->cc('cc@demo.test')->bcc('bcc@demo.test')
        ->replyTo('help@demo.test')->subject($scheme)->text("Hällo {{you}}")
        ->html('<p>Grüße</p><img src="cid:logo">')
        ->attach('%PDF', 'Größe.pdf', 'application/pdf')->embed('png', 'logo', 'image/png');
    $mail->getHeaders()->addTextHeader('X-Order', '№ 7');
    $mail->getHeaders()->addIdHeader('Message-ID', 'symfony-7@app.test');
    echo $scheme, ' ', $transport->send($mail)->getMessageId(), "\n";
    try {
        $transport->send((new Email())->from("shop@$domain")->to('a@x_y.test')->subject('wrong')->text('t'));
    } catch (Exception $e) {
        echo 'wrong ', $e->getMessage(), "\n";
    }
}
